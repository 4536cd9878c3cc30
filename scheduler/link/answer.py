"""From the wire's StepResult to the engine's answer, checked against the step that it answers."""

from __future__ import annotations

import numpy as np

from nanoserve.v1 import worker_pb2
from scheduler.core.worker_link import StepAnswer, StepTimes
from scheduler.link.logprobs import result_logprobs
from scheduler.link.window import SentStep

_INT32, _UINT32 = np.dtype("<i4"), np.dtype("<u4")


def step_answer(
    result: worker_pb2.StepResult, sent: SentStep, vocab_size: int, round_trip_ns: int
) -> StepAnswer:
    """Raises ValueError if the result is not what worker.proto says of it."""
    name, step = f"the result of step {result.step_id}", sent.message
    sampling = step.samples.count(1)
    if len(result.tokens) != 4 * sampling:
        raise ValueError(
            f"{name} has {len(result.tokens)} bytes of tokens, must be 4 for each of "
            f"{sampling} sequences"
        )
    if len(result.flags) not in (0, sampling):
        raise ValueError(f"{name} has {len(result.flags)} flags, must be 0 or {sampling}")
    tokens = np.frombuffer(result.tokens, _INT32)
    if sampling and (most := int(tokens.view(_UINT32).max())) >= vocab_size:
        raise ValueError(
            f"{name} has the token {most}, must be below {vocab_size} and not negative"
        )
    times = result.times
    return StepAnswer(
        step_id=result.step_id,
        tokens=tokens,
        non_finite=np.frombuffer(result.flags, "u1").astype(bool) if result.flags else None,
        times_ns=StepTimes(
            times.queue,
            times.input,
            times.device,
            times.sample,
            times.total,
            round_trip_ns,
            times.idle if times.HasField("idle") else None,
        ),
        bytes_sent=step.ByteSize(),
        bytes_received=result.ByteSize(),
        sub_step=result.sub_step,
        logprobs=result_logprobs(result, sent.logprob_counts, vocab_size),
    )
