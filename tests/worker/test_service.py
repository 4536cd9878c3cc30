"""The worker API over real gRPC, with the simulated executor."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from nanoserve.v1 import worker_pb2, worker_pb2_grpc
from scheduler.link.encoder import encode_step
from tests.waiting import SECONDS, wait_for
from tests.worker.held_executor import HeldExecutor
from tests.worker.running_worker import (
    RunningWorker,
    Stream,
    connect,
    running_worker,
    small_geometry,
)
from tests.worker.step_messages import first_step, int32, int64, second_step
from tests.worker.toy_scheduler import ToyScheduler, random_requests
from worker.executor import Pending, StepOutput
from worker.simulate import SimulatedExecutor, SimulationOptions
from worker.simulated_tokens import expected_tokens
from worker.step import CheckedStep

Stub = worker_pb2_grpc.WorkerServiceStub
A = expected_tokens(range(10, 15), 3, 1000)
B = expected_tokens([20, 21, 22], 2, 1000)


@pytest.fixture
def worker() -> Iterator[RunningWorker]:
    with running_worker() as worker:
        yield worker
        assert worker.fatal == []


@pytest.fixture
def stub(worker: RunningWorker) -> Iterator[Stub]:
    with worker.stub() as stub:
        yield stub


def tokens(result: worker_pb2.StepResult) -> list[int]:
    assert not result.HasField("refusal"), result.refusal.message
    return np.frombuffer(result.tokens, "<i4").tolist()


def fails_with(code: grpc.StatusCode, call: object) -> str:
    """The details of a call that must end with `code`."""
    with pytest.raises(grpc.RpcError) as raised:
        list(call) if isinstance(call, grpc.Call) else call()  # type: ignore[operator]
    assert raised.value.code() is code
    return raised.value.details()


def third_step(incarnation: int) -> worker_pb2.Step:
    step = second_step(incarnation, rows=int32(3), query_lens=int32(1), context_lens=int32(7))
    step.step_id, step.slot_mapping, step.samples = 3, int64(38), b"\1"
    return step


def test_connect_tells_model_pool_and_limits(worker: RunningWorker, stub: Stub) -> None:
    response = connect(stub, model_fingerprint="f" * 64)
    geometry = worker.session.geometry
    assert response.protocol_version == 1
    assert response.model == geometry.model_message()
    assert response.pool == worker_pb2.PoolGeometry(num_blocks=40, block_size=4, bytes_per_block=32)
    assert response.limits == worker_pb2.WorkerLimits(
        max_rows=8, max_step_tokens=64, max_steps_in_flight=4, max_decode_steps=4
    )
    assert response.incarnation != 0
    assert (response.last_executed_step, response.device) == (0, "simulated")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"protocol_version": 2},
            "protocol_version is 2, this worker speaks 1: run scheduler and worker of the same "
            "release",
        ),
        (
            {"protocol_version": 0},
            "protocol_version is 0, this worker speaks 1: run scheduler and worker of the same "
            "release",
        ),
        (
            {"model_fingerprint": "0" * 64},
            f"model_fingerprint is {'0' * 64}, this worker serves {'f' * 64}: start both with the "
            "same model",
        ),
        (
            {"epoch": 4},
            "epoch is 4, must be at least 5: a newer scheduler has this worker; to take it over, "
            "start this one again, by a clock that is not behind",
        ),
    ],
)
def test_connect_refuses_what_does_not_fit_and_names_both(
    stub: Stub, fields: dict[str, object], message: str
) -> None:
    connect(stub)
    details = fails_with(grpc.StatusCode.FAILED_PRECONDITION, lambda: connect(stub, **fields))
    assert details == message


def test_an_epoch_below_one_is_refused(stub: Stub) -> None:
    details = fails_with(grpc.StatusCode.FAILED_PRECONDITION, lambda: connect(stub, epoch=0))
    assert details.startswith("epoch is 0, must be at least 1: ")


def test_steps_are_answered_in_order_with_tokens_and_times(stub: Stub) -> None:
    incarnation = connect(stub).incarnation
    stream = Stream(stub, 5)
    stream.send(first_step(incarnation), second_step(incarnation), third_step(incarnation))
    results = [next(stream.call) for _ in range(3)]
    assert [result.step_id for result in results] == [1, 2, 3]
    assert [tokens(result) for result in results] == [A[:1], [A[1], B[0]], A[2:]]
    assert all(r.times.total >= r.times.input > 0 and not r.flags for r in results)
    stream.half_close()
    assert list(stream.call) == []
    assert stream.call.code() is grpc.StatusCode.OK


def test_each_repetition_of_a_step_is_a_result_of_its_own(stub: Stub) -> None:
    incarnation = connect(stub).incarnation
    stream = Stream(stub, 5)
    step = second_step(incarnation, rows=int32(3), query_lens=int32(1), context_lens=int32(6))
    step.slot_mapping, step.samples, step.decode_steps = int64(37, 38), b"\1", 2
    stream.send(first_step(incarnation), step)
    results = [next(stream.call) for _ in range(3)]
    assert [(r.step_id, r.sub_step) for r in results] == [(1, 0), (2, 0), (2, 1)]
    assert [token for r in results for token in tokens(r)] == A


def test_a_row_that_is_not_finite_is_flagged() -> None:
    options = SimulationOptions(non_finite_tokens=frozenset({22}))
    with running_worker(options=options) as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.ask(first_step(incarnation))
        result = stream.ask(second_step(incarnation))
        assert (tokens(result), result.flags) == ([A[1], 0], b"\0\1")


def test_a_refused_step_is_named_and_all_later_ones_follow_until_reset(stub: Stub) -> None:
    incarnation = connect(stub).incarnation
    stream = Stream(stub, 5)
    stream.ask(first_step(incarnation))
    bad = second_step(incarnation, slot_mapping=int64(37, 20, 3, 22))
    stream.send(bad, third_step(incarnation))
    refused, follower = next(stream.call), next(stream.call)
    assert refused == worker_pb2.StepResult(
        step_id=2,
        refusal=worker_pb2.Refusal(
            reason=worker_pb2.REFUSAL_REASON_BAD_STEP,
            message="slot_mapping[2] is 3, must be 4 <= slot < 160 (block 0 is the scratch "
            "block); sequence 1, row 1, request 'b'",
            sequence=1,
            row=1,
            request_id="b",
        ),
    )
    assert follower.refusal == worker_pb2.Refusal(
        reason=worker_pb2.REFUSAL_REASON_FOLLOWS_REFUSED,
        message="step 2 was refused: call Reset first",
    )
    assert stub.GetStatus(worker_pb2.WorkerServiceGetStatusRequest()).refusing
    again = Stream(stub, 5)
    assert tokens(again.ask(first_step(incarnation))) == A[:1], "kept answers are still given"
    assert again.ask(bad) == refused, "and so is the refusal"
    fresh = stub.Reset(worker_pb2.ResetRequest(epoch=5)).incarnation
    assert fails_with(grpc.StatusCode.ABORTED, again.call) == "Reset was called"
    assert fresh != incarnation
    assert connect(stub).incarnation == fresh
    assert not stub.GetStatus(worker_pb2.WorkerServiceGetStatusRequest()).refusing
    assert tokens(Stream(stub, 5).ask(first_step(fresh))) == A[:1]


def test_a_step_for_another_incarnation_is_refused(stub: Stub) -> None:
    incarnation = connect(stub).incarnation
    result = Stream(stub, 5).ask(first_step(incarnation ^ 1))
    assert result.refusal == worker_pb2.Refusal(
        reason=worker_pb2.REFUSAL_REASON_WRONG_INCARNATION,
        message=f"incarnation is {incarnation ^ 1}, must be {incarnation}",
    )


def test_a_late_step_of_the_last_incarnation_does_not_stop_this_one(stub: Stub) -> None:
    stale = connect(stub).incarnation
    fresh = stub.Reset(worker_pb2.ResetRequest(epoch=5)).incarnation
    stream = Stream(stub, 5)
    reason = stream.ask(first_step(stale)).refusal.reason
    assert reason == worker_pb2.REFUSAL_REASON_WRONG_INCARNATION
    assert tokens(stream.ask(first_step(fresh))) == A[:1]


def test_a_step_id_that_is_not_the_next_is_refused(stub: Stub) -> None:
    incarnation = connect(stub).incarnation
    stream = Stream(stub, 5)
    stream.ask(first_step(incarnation))
    result = stream.ask(third_step(incarnation))
    assert result.refusal == worker_pb2.Refusal(
        reason=worker_pb2.REFUSAL_REASON_WRONG_STEP_ID,
        message="step_id is 3, must be 2 or kept (1 to 1)",
    )


def empty_step(step_id: int, incarnation: int) -> worker_pb2.Step:
    return worker_pb2.Step(step_id=step_id, incarnation=incarnation)


def test_the_last_answers_are_kept_for_repeats_and_older_ones_are_not(stub: Stub) -> None:
    incarnation = connect(stub).incarnation
    stream = Stream(stub, 5)
    stream.ask(first_step(incarnation))
    for step_id in range(2, 10):
        stream.ask(empty_step(step_id, incarnation))
    assert connect(stub).last_executed_step == 9
    resumed = Stream(stub, 5)
    assert resumed.ask(empty_step(2, incarnation)).step_id == 2
    result = resumed.ask(first_step(incarnation))
    assert result.refusal.message == "step_id is 1, must be 10 or kept (2 to 9)"


def test_a_stream_that_breaks_is_resumed_at_the_first_unanswered_step() -> None:
    """Kills the stream again and again in the middle of a random run."""
    rng = random.Random(3)
    with running_worker() as worker, worker.stub() as stub:
        scheduler = ToyScheduler(worker.session.geometry, connect(stub).incarnation, rng)
        requests = random_requests(rng, 12, 1000, 64)
        scheduler.waiting = list(requests)
        stream = Stream(stub, 5)
        window: list[worker_pb2.Step] = []
        while scheduler.busy or window:
            while scheduler.busy and len(window) < 3:
                window.append(encode_step(scheduler.plan()))
                stream.send(window[-1])
            if rng.random() < 0.2:
                stream.cancel()
                assert connect(stub).incarnation == scheduler.incarnation
                stream = Stream(stub, 5)
                stream.send(*window)
            result = next(stream.call)
            assert result.step_id == window.pop(0).step_id
            scheduler.answer(result.step_id, np.array(tokens(result), np.int32))
        status = stub.GetStatus(worker_pb2.WorkerServiceGetStatusRequest())
        assert status.steps == scheduler.step_id, "no step ran twice"
    for r in requests:
        right = expected_tokens(r.prompt, r.count, 1000, temperature=r.temperature, seed=r.seed)
        assert r.output == right, r.request_id


def test_a_newer_stream_ends_the_older_one(stub: Stub) -> None:
    incarnation = connect(stub).incarnation
    older = Stream(stub, 5)
    older.ask(first_step(incarnation))
    newer = Stream(stub, 5)
    assert tokens(newer.ask(second_step(incarnation))) == [A[1], B[0]]
    assert fails_with(grpc.StatusCode.ABORTED, older.call) == "a newer stream took over"


def test_a_higher_epoch_drops_all_rows_and_closes_the_older_stream(stub: Stub) -> None:
    first = connect(stub)
    older = Stream(stub, 5)
    older.ask(first_step(first.incarnation))
    second = connect(stub, epoch=6)
    assert fails_with(grpc.StatusCode.ABORTED, older.call) == "epoch 6 connected"
    assert second.incarnation != first.incarnation
    assert second.last_executed_step == 0
    status = stub.GetStatus(worker_pb2.WorkerServiceGetStatusRequest())
    assert (status.epoch, status.live_rows) == (6, 0)
    details = fails_with(grpc.StatusCode.FAILED_PRECONDITION, Stream(stub, 5).call)
    assert details == "epoch is 5, but the last Connect's is 6"
    assert tokens(Stream(stub, 6).ask(first_step(second.incarnation))) == A[:1]


def test_the_same_epoch_keeps_rows_and_answers(stub: Stub) -> None:
    first = connect(stub)
    Stream(stub, 5).ask(first_step(first.incarnation))
    second = connect(stub)
    assert (second.incarnation, second.last_executed_step) == (first.incarnation, 1)


def test_a_stream_without_a_connect_or_an_epoch_is_refused(stub: Stub) -> None:
    details = fails_with(grpc.StatusCode.FAILED_PRECONDITION, Stream(stub, 5).call)
    assert details == "epoch is 5, but the last Connect's is 0: Connect first"
    call = stub.Execute(iter(()), timeout=10)
    details = fails_with(grpc.StatusCode.INVALID_ARGUMENT, call)
    assert details == "metadata nanoserve-epoch is '', must be the epoch of Connect in decimal"


def test_reset_is_for_the_last_epoch_only(stub: Stub) -> None:
    connect(stub)
    details = fails_with(
        grpc.StatusCode.FAILED_PRECONDITION,
        lambda: stub.Reset(worker_pb2.ResetRequest(epoch=4)),
    )
    assert details == "epoch is 4, but the last Connect's is 5"


def test_status_counts_rows_steps_and_tokens(worker: RunningWorker, stub: Stub) -> None:
    incarnation = connect(stub).incarnation
    stream = Stream(stub, 5)
    stream.ask(first_step(incarnation))
    stream.ask(second_step(incarnation))
    assert stub.GetStatus(worker_pb2.WorkerServiceGetStatusRequest()) == (
        worker_pb2.WorkerServiceGetStatusResponse(
            incarnation=incarnation,
            epoch=5,
            last_executed_step=2,
            live_rows=2,
            steps=2,
            tokens_computed=9,
            tokens_sampled=3,
            pool=worker.session.geometry.pool_message(),
            device="simulated",
        )
    )


def test_more_steps_in_flight_than_allowed_are_refused() -> None:
    executor = HeldExecutor(max_steps_in_flight=2)
    with running_worker(executor) as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.send(*(empty_step(i, incarnation) for i in (1, 2, 3)))
        wait_for(lambda: worker.session.status().refusing, "the third has come")
        executor.release.set()
        results = [next(stream.call) for _ in range(3)]
    assert [r.HasField("refusal") for r in results] == [False, False, True]
    assert results[2].refusal.message == (
        "3 steps are unanswered, must be at most max_steps_in_flight 2"
    )


class Failing(SimulatedExecutor):
    """Its second step fails, when it is launched or when it is waited for."""

    def __init__(self, at: str) -> None:
        super().__init__(small_geometry())
        self._at = at
        self._launched = 0

    def launch(self, step: CheckedStep) -> Sequence[Pending]:
        self._launched += 1
        if self._launched < 2:
            return super().launch(step)
        if self._at == "launch":
            raise RuntimeError("the device is gone\nfor good")
        return [FailingPending()]


class FailingPending:
    inline_ns = 0

    def wait(self) -> StepOutput:
        raise RuntimeError("the device is gone\nfor good")


@pytest.mark.parametrize("at", ["launch", "wait"])
def test_a_step_that_fails_is_said_before_the_worker_ends(at: str) -> None:
    with running_worker(Failing(at)) as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.send(first_step(incarnation), second_step(incarnation))
        assert tokens(next(stream.call)) == A[:1], "the answer before it comes first"
        details = fails_with(grpc.StatusCode.DATA_LOSS, stream.call)
        assert details == "a step failed: RuntimeError: the device is gone for good"
        assert worker.failed.wait(SECONDS)
        assert [str(error) for error in worker.fatal] == ["the device is gone\nfor good"]


def test_health_is_serving_for_the_server_and_the_service(worker: RunningWorker) -> None:
    with grpc.insecure_channel(worker.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "nanoserve.v1.WorkerService"):
            response = health.Check(health_pb2.HealthCheckRequest(service=name))
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        details = fails_with(
            grpc.StatusCode.NOT_FOUND,
            lambda: health.Check(health_pb2.HealthCheckRequest(service="other")),
        )
        assert details is not None


def test_reflection_lists_the_service_and_health(worker: RunningWorker) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(worker.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (response,) = stub.ServerReflectionInfo(iter([request]))
    names = {service.name for service in response.list_services_response.service}
    assert {"nanoserve.v1.WorkerService", "grpc.health.v1.Health"} <= names


def test_draining_lets_the_open_stream_finish_and_takes_no_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.server._IDLE_SECONDS", SECONDS)
    with running_worker() as worker, worker.stub() as stub:
        incarnation = connect(stub).incarnation
        stream = Stream(stub, 5)
        stream.ask(first_step(incarnation))
        drain = threading.Thread(target=worker.server.drain, args=(SECONDS,))
        drain.start()
        wait_for(lambda: worker.service.draining, "it drains")
        assert tokens(stream.ask(second_step(incarnation))) == [A[1], B[0]]
        details = fails_with(grpc.StatusCode.UNAVAILABLE, lambda: connect(stub))
        assert details == "the worker is shutting down"
        health = health_pb2_grpc.HealthStub(grpc.insecure_channel(worker.address))
        response = health.Check(health_pb2.HealthCheckRequest())
        assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
        monkeypatch.setattr("worker.server._IDLE_SECONDS", 0.1)
        details = fails_with(grpc.StatusCode.UNAVAILABLE, stream.call)
        assert details == "the worker is shutting down"
        drain.join(SECONDS)
        assert not drain.is_alive()
