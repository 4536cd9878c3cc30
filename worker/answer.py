"""The answer to one step: kept for repeats, so made once and read by any stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.executor import Pending, StepOutput
from worker.refusal import StepRefused
from worker.statistics import StepDurations
from worker.step import CheckedStep

_FLAG = np.uint8(worker_pb2.SAMPLE_FLAG_NON_FINITE)


@dataclass(slots=True)
class Answer:
    """A step that was admitted. The executor's thread fills in `pendings`, before the answer
    reaches a stream."""

    step: CheckedStep
    arrived_ns: int
    started_ns: int
    durations: StepDurations
    is_first: bool  # of the process: what the device did before was the warm-up
    input_ns: int = 0
    pendings: Sequence[Pending] = ()
    on_result: Callable[[worker_pb2.StepResult], object] | None = None  # once for each
    _results: list[worker_pb2.StepResult] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def repetitions(self) -> int:
        return self.step.decode_steps

    @property
    def made(self) -> Sequence[worker_pb2.StepResult]:
        """The results so far; waits for nothing."""
        return tuple(self._results)

    def results(self) -> Iterator[worker_pb2.StepResult]:
        """The result of each repetition, as soon as the device has it."""
        for sub_step, pending in enumerate(self.pendings):
            with self._lock:
                if sub_step == len(self._results):
                    self._results.append(self._result(sub_step, pending))
                    if self.on_result:
                        self.on_result(self._results[-1])
                    if len(self._results) == self.repetitions:
                        self.durations.answered([result.times for result in self._results])
            yield self._results[sub_step]

    def _result(self, sub_step: int, pending: Pending) -> worker_pb2.StepResult:
        output = pending.wait()
        flags = b"" if output.non_finite is None else (output.non_finite * _FLAG).tobytes()
        return worker_pb2.StepResult(
            **_logprob_columns(output),
            step_id=self.step.step_id,
            sub_step=sub_step,
            tokens=output.tokens.astype("<i4", copy=False).tobytes(),
            flags=flags,
            times=worker_pb2.StepTimes(
                queue=self.started_ns - self.arrived_ns,
                input=self.input_ns,
                device=output.device_ns,
                sample=output.sample_ns,
                total=time.monotonic_ns() - self.arrived_ns,
                idle=None if self.is_first and not sub_step else output.idle_ns,
            ),
        )


def _logprob_columns(output: StepOutput) -> dict[str, bytes]:
    """The fields of StepResult; none where nobody asked."""
    if (logprobs := output.logprobs) is None:
        return {}
    return {
        "logprob_samples": logprobs.samples.astype("<i4", copy=False).tobytes(),
        "logprob_counts": logprobs.counts.astype("<i4", copy=False).tobytes(),
        "logprob_ids": logprobs.ids.astype("<i4", copy=False).tobytes(),
        "logprobs": logprobs.values.astype("<f4", copy=False).tobytes(),
    }


@dataclass(frozen=True, slots=True)
class RefusedAnswer:
    """A step that was refused."""

    step_id: int
    refusal: StepRefused
    repetitions: int = 1

    def results(self) -> Iterator[worker_pb2.StepResult]:
        yield worker_pb2.StepResult(step_id=self.step_id, refusal=self.refusal.message())
