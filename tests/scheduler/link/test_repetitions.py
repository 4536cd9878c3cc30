"""A step with several results, over real gRPC: cut, stale and refused in their midst."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import numpy as np
import pytest

from nanoserve.v1 import worker_pb2, worker_pb2_grpc
from scheduler.core.worker_link import (
    Connected,
    Disconnected,
    NewRow,
    StepAnswer,
    StepPlan,
    StepRefused,
)
from tests.scheduler.link.held_device import HeldExecutor
from tests.scheduler.link.test_link import Inbox, linked
from tests.scheduler.logprob_columns import entry_of
from tests.worker.running_worker import running_worker, small_geometry
from worker.simulated_logprobs import expected_logprobs
from worker.simulated_tokens import expected_tokens


def four_tokens(step_id: int, incarnation: int, top_logprobs: int | None = None) -> StepPlan:
    """The first four tokens of the prompt [14], in row 0 and block 1."""
    none, one = np.zeros(0, np.int32), np.ones(1, np.int32)
    new = NewRow(0, "r", np.full(1, 14, np.int32), 1, one, 0.0, 0, top_logprobs=top_logprobs)
    return StepPlan(
        step_id=step_id,
        incarnation=incarnation,
        free_rows=none,
        new_rows=[new],
        table_rows=none,
        table_counts=none,
        table_blocks=none,
        rows=np.zeros(1, np.int32),
        query_lens=one,
        context_lens=one,
        slot_mapping=np.arange(4, 8),
        samples=np.ones(1, bool),
        decode_steps=4,
        logprob_counts=None if top_logprobs is None else np.array([1 + top_logprobs]),
    )


def test_a_stream_cut_amid_the_results_of_a_step_brings_each_of_them_once() -> None:
    device = HeldExecutor()
    with running_worker(device) as worker, linked(worker.address) as (link, inbox):
        connected = inbox.next(Connected)
        assert connected.info.max_decode_steps == 4
        link.send(four_tokens(1, connected.info.incarnation, top_logprobs=2))
        device.release()
        answers = [inbox.next(StepAnswer)]
        assert link._call is not None
        link._call.cancel()  # as when the connection breaks: the worker ends a stream between steps
        assert inbox.next(Connected).resumed
        device.release(3)
        answers += [inbox.next(StepAnswer) for _ in range(3)]
        assert [answer.sub_step for answer in answers] == [0, 1, 2, 3]
        tokens = [int(answer.tokens[0]) for answer in answers]
        assert tokens == expected_tokens([14], 4, 1000)
        logprobs = [entry for answer in answers for entry in answer.logprobs.by_token(1)]
        right = expected_logprobs([14], tokens, 1000, top_logprobs=2)
        assert [list(zip(*entry_of(entry), strict=True)) for entry in logprobs] == right
        assert worker.session.status().steps == 1
        assert inbox.empty()


class WrongWorker(worker_pb2_grpc.WorkerServiceServicer):
    """Answers the first step with `results`, whatever it was."""

    def __init__(self, results: list[worker_pb2.StepResult]) -> None:
        self.incarnation = 1
        self._results = results

    def Connect(self, request, context):
        response = small_geometry().description()
        response.incarnation = self.incarnation
        return response

    def Execute(self, steps, context):
        for _ in steps:
            yield from self._results

    def Reset(self, request, context):
        self.incarnation += 1
        return worker_pb2.ResetResponse(incarnation=self.incarnation)


@contextmanager
def wrong_worker(*results: worker_pb2.StepResult) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(WrongWorker(list(results)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def result(
    step_id: int, sub_step: int, tokens: bytes = b"\1\0\0\0", **columns: bytes
) -> worker_pb2.StepResult:
    return worker_pb2.StepResult(step_id=step_id, sub_step=sub_step, tokens=tokens, **columns)


def begin(link, inbox: Inbox) -> None:
    link.send(four_tokens(1, inbox.next(Connected).info.incarnation))
    assert [inbox.next(StepAnswer).sub_step for _ in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (result(1, 1), "sub_step 1 of step 1 was answered, but 2 is next"),
        (result(1, 3), "sub_step 3 of step 1 was answered, but 2 is next"),
        (result(2, 0), "step 2 was answered, but the oldest unanswered is 1"),
        (result(1, 2, b"\1\0\0"), "3 bytes of tokens, must be 4 for each of 1 sequences"),
        (result(1, 2, 8 * b"\0"), "8 bytes of tokens, must be 4 for each of 1 sequences"),
        (result(1, 2, flags=b"\0\0"), "2 flags, must be 0 or 1"),
        (result(1, 2, b"\xe8\3\0\0"), "the token 1000, must be below 1000 and not negative"),
        (result(1, 2, 4 * b"\xff"), "the token 4294967295, must be below 1000 and not negative"),
        (result(1, 2, logprobs=4 * b"\0"), "has log-probabilities, and no row asked for any"),
    ],
)
def test_a_wrong_result_amid_those_of_a_step_is_told_and_resets_the_worker(
    wrong: worker_pb2.StepResult, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        wrong_worker(result(1, 0), result(1, 1), wrong) as address,
        linked(address) as (link, inbox),
    ):
        begin(link, inbox)
        connected = inbox.next(Connected)
        assert not connected.resumed
        assert connected.info.incarnation == 2
        assert inbox.empty(), "nothing of the wrong result is passed on"
    assert why in caplog.text


def test_a_refusal_amid_the_results_of_a_step_is_told_and_resets_the_worker() -> None:
    refusal = worker_pb2.Refusal(message="it is bad", sequence=0)
    refused = worker_pb2.StepResult(step_id=1, refusal=refusal)
    with (
        wrong_worker(result(1, 0), result(1, 1), refused) as address,
        linked(address) as (link, inbox),
    ):
        begin(link, inbox)
        assert inbox.next(StepRefused) == StepRefused(1, "it is bad", sequence=0)
        assert inbox.next(Disconnected).reason == "a step was refused or answered wrongly"
        assert not inbox.next(Connected).resumed
