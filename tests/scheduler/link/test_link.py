"""The link against a simulated worker, over real gRPC and across its restarts."""

from __future__ import annotations

import queue
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import grpc
import numpy as np
import psutil
import pytest

from scheduler.core.worker_link import (
    Connected,
    Disconnected,
    LinkEvent,
    NewRow,
    StepAnswer,
    StepPlan,
    StepRefused,
)
from scheduler.link.channel_options import CHANNEL_OPTIONS
from scheduler.link.link import GrpcWorkerLink
from tests.scheduler.link.held_device import HeldExecutor
from tests.waiting import SECONDS, wait_for
from tests.worker.running_worker import RunningWorker, connect, running_worker
from tests.worker.toy_scheduler import ToyScheduler, random_requests
from tests.worker.worker_process import worker_process
from worker.simulate import SimulationOptions
from worker.simulated_tokens import expected_tokens

E = TypeVar("E")


class Inbox:
    def __init__(self) -> None:
        self._events: queue.SimpleQueue[LinkEvent] = queue.SimpleQueue()

    def post(self, event: LinkEvent) -> None:
        self._events.put(event)

    def next(self, kind: type[E], *passed_over: type) -> E:
        """The next event, which must be of this kind, but for those that are passed over:
        Disconnected, too, unless it is asked for, since how often a link reports it depends on
        time."""
        skipped = passed_over if kind is Disconnected else (Disconnected, *passed_over)
        while True:
            event = self._events.get(timeout=SECONDS)
            if isinstance(event, skipped):
                continue
            assert isinstance(event, kind), event
            return event

    def empty(self) -> bool:
        return self._events.empty()


@contextmanager
def linked(address: str, **options: object) -> Iterator[tuple[GrpcWorkerLink, Inbox]]:
    link, inbox = GrpcWorkerLink(address, **options), Inbox()  # type: ignore[arg-type]
    link.start(inbox)
    try:
        yield link, inbox
    finally:
        link.close()


def scheduler_of(worker: RunningWorker, connected: Connected, seed: int = 0) -> ToyScheduler:
    scheduler = ToyScheduler(
        worker.session.geometry, connected.info.incarnation, random.Random(seed)
    )
    scheduler.waiting = random_requests(random.Random(seed), 15, 1000, 64)
    return scheduler


def empty_plan(step_id: int, incarnation: int) -> StepPlan:
    empty = np.zeros(0, np.int32)
    return StepPlan(
        step_id=step_id,
        incarnation=incarnation,
        free_rows=empty,
        new_rows=[],
        table_rows=empty,
        table_counts=empty,
        table_blocks=empty,
        rows=empty,
        query_lens=empty,
        context_lens=empty,
        slot_mapping=np.zeros(0, np.int64),
        samples=np.zeros(0, bool),
    )


def assert_all_right(scheduler: ToyScheduler, requests: list) -> None:
    assert not scheduler.busy
    for r in requests:
        right = expected_tokens(r.prompt, r.count, 1000, temperature=r.temperature, seed=r.seed)
        assert r.output == right, r.request_id


def test_the_worker_is_described_as_connect_tells_it() -> None:
    with running_worker() as worker, linked(worker.address) as (_, inbox):
        connected = inbox.next(Connected)
        assert not connected.resumed
        info = connected.info
        assert (info.vocab_size, info.max_model_len, info.device) == (1000, 64, "simulated")
        assert (info.num_blocks, info.block_size, info.max_rows) == (40, 4, 8)
        assert (info.max_step_tokens, info.max_steps_in_flight) == (64, 4)
        assert (info.last_executed_step, info.fingerprint) == (0, "f" * 64)


@pytest.mark.parametrize("depth", [1, 4])
def test_a_pipelined_run_gives_every_request_its_tokens(depth: int) -> None:
    with running_worker() as worker, linked(worker.address) as (link, inbox):
        scheduler = scheduler_of(worker, inbox.next(Connected))
        requests = list(scheduler.waiting)
        in_flight = 0
        while scheduler.busy or in_flight:
            while scheduler.busy and in_flight < depth:
                link.send(scheduler.plan())
                in_flight += 1
            answer = inbox.next(StepAnswer)
            assert answer.times_ns.round_trip > answer.times_ns.total > 0
            scheduler.answer(answer.step_id, answer.tokens)
            in_flight -= 1
        assert_all_right(scheduler, requests)


def test_a_unix_socket_does_as_well(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'worker.sock'}"
    with running_worker(address=address) as worker, linked(address) as (link, inbox):
        incarnation = inbox.next(Connected).info.incarnation
        assert worker.address == address
        link.send(empty_plan(1, incarnation))
        assert inbox.next(StepAnswer).step_id == 1


def test_a_cut_stream_is_resumed_and_no_step_is_lost_or_run_twice() -> None:
    """The worker ends the stream at random moments, with steps in flight."""
    rng = random.Random(5)
    with running_worker() as worker, linked(worker.address) as (link, inbox):
        scheduler = scheduler_of(worker, inbox.next(Connected), seed=5)
        requests = list(scheduler.waiting)
        in_flight = cuts = resumed = 0
        flowing = False  # whether the open stream has brought an answer, so that it can be cut
        while scheduler.busy or in_flight:
            while scheduler.busy and in_flight < 3:
                link.send(scheduler.plan())
                in_flight += 1
            if rng.random() < 0.1 and flowing:
                flowing = False
                worker.service.end_stream(grpc.StatusCode.UNAVAILABLE, "cut by the test")
                cuts += 1
            event = inbox.next(object)
            if isinstance(event, Connected):
                assert event.resumed
                resumed += 1
            else:
                assert isinstance(event, StepAnswer)
                scheduler.answer(event.step_id, event.tokens)
                in_flight -= 1
                flowing = cuts == resumed
        assert cuts > 20
        assert worker.session.status().steps == scheduler.step_id
        assert_all_right(scheduler, requests)


def test_a_worker_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker"
    with linked(address) as (_, inbox):
        reason = inbox.next(Disconnected).reason
        assert reason == "UNAVAILABLE: nobody listens there (No such file or directory)"
        with running_worker(address=address):
            assert not inbox.next(Connected).resumed


def test_a_port_with_no_worker_at_it_is_told_in_plain_words() -> None:
    with socket.socket() as bound:  # so that no other program listens there meanwhile
        bound.bind(("127.0.0.1", 0))
        with linked(f"127.0.0.1:{bound.getsockname()[1]}") as (_, inbox):
            reason = inbox.next(Disconnected).reason
    assert reason == "UNAVAILABLE: nobody listens there (Connection refused)"


def test_a_worker_that_closes_connections_as_it_ends_is_not_taken_for_a_wrong_certificate(
    tmp_path: Path,
) -> None:
    address = f"unix:{tmp_path}/worker"
    with linked(address) as (_, inbox):
        with running_worker(address=address):
            inbox.next(Connected)
        with socket.socket(socket.AF_UNIX) as ending:
            ending.bind(f"{tmp_path}/worker")
            ending.listen()
            ending.settimeout(SECONDS)
            reason = ""
            while "closes connections before a call" not in reason:
                ending.accept()[0].close()
                while not inbox.empty():
                    reason = inbox.next(Disconnected).reason
        assert reason.startswith("UNAVAILABLE: it closes connections before a call: it is ending;")


def test_a_new_worker_at_the_address_drops_the_window(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker"
    slow = SimulationOptions(step_ms=1000)
    with linked(address) as (link, inbox):
        with running_worker(address=address, options=slow) as worker:
            first = inbox.next(Connected).info
            link.send(empty_plan(1, first.incarnation))
            wait_for(lambda: worker.session.status().steps > 0, "it has the step")
        with running_worker(address=address):
            connected = inbox.next(Connected, StepAnswer)  # of the first worker, if it got so far
            assert not connected.resumed
            second = connected.info.incarnation
            assert second != first.incarnation
            link.send(empty_plan(2, first.incarnation))  # planned before the loss was known
            link.send(empty_plan(1, second))
            link.send(empty_plan(2, second))
            assert [inbox.next(StepAnswer).step_id for _ in range(2)] == [1, 2]
            assert inbox.empty()


def test_a_refused_step_is_reported_and_followed_by_a_fresh_incarnation() -> None:
    with running_worker() as worker, linked(worker.address) as (link, inbox):
        first = inbox.next(Connected).info.incarnation
        bad = replace(empty_plan(1, first), free_rows=np.array([3], np.int32))
        link.send(bad)
        link.send(empty_plan(2, first))
        assert inbox.next(StepRefused) == StepRefused(
            1, "free_rows[0] is 3, which is not live; row 3"
        )
        assert inbox.next(Disconnected).reason == "a step was refused or answered wrongly"
        connected = inbox.next(Connected)
        assert not connected.resumed
        second = connected.info.incarnation
        assert second != first
        link.send(empty_plan(1, second))
        assert inbox.next(StepAnswer).step_id == 1
        assert inbox.empty()


def test_a_row_that_is_not_finite_is_marked() -> None:
    options = SimulationOptions(non_finite_tokens=frozenset(range(1000)))
    with running_worker(options=options) as worker, linked(worker.address) as (link, inbox):
        scheduler = scheduler_of(worker, inbox.next(Connected))
        scheduler.preempt_chance = 0
        answer = None
        while answer is None or not len(answer.tokens):
            link.send(scheduler.plan())
            answer = inbox.next(StepAnswer)
        assert answer.non_finite is not None
        assert answer.non_finite.all()
        assert answer.non_finite.dtype == bool


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"fingerprint": "0" * 64},
            f"FAILED_PRECONDITION: model_fingerprint is {'0' * 64}, this worker serves "
            f"{'f' * 64}: start both with the same model",
        ),
        (
            {"epoch": 4},
            "FAILED_PRECONDITION: epoch is 4, must be at least 5: a newer scheduler has this "
            "worker; to take it over, start this one again, by a clock that is not behind",
        ),
    ],
)
def test_a_worker_that_does_not_fit_is_an_error_that_names_both(
    options: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running_worker() as worker, worker.stub() as stub:
        connect(stub)
        with linked(worker.address, **options) as (_, inbox):
            assert inbox.next(Disconnected).reason == reason
    (record,) = [r for r in caplog.records if r.name == "scheduler.link.link"]
    assert record.levelname == "ERROR"
    assert reason in record.getMessage()


def test_a_newer_scheduler_takes_the_worker_over() -> None:
    with (
        running_worker() as worker,
        linked(worker.address, slow_retry=0.05) as (old_link, old_inbox),
    ):
        first = old_inbox.next(Connected).info.incarnation
        old_link.send(empty_plan(1, first))
        assert old_inbox.next(StepAnswer).step_id == 1, "its stream is open"
        with linked(worker.address) as (link, inbox):
            second = inbox.next(Connected).info.incarnation
            assert second != first
            assert old_inbox.next(Disconnected).reason.startswith("ABORTED: epoch ")
            assert old_inbox.next(Disconnected).reason.startswith("FAILED_PRECONDITION: epoch is ")
            link.send(empty_plan(1, second))
            assert inbox.next(StepAnswer).step_id == 1


@pytest.mark.parametrize("killed", [False, True])
def test_a_worker_that_ends_says_whether_a_step_failed(killed: bool) -> None:
    flags = ("--simulate", "--listen", "127.0.0.1:0", "--step-ms", "60000" if killed else "0")
    with (
        worker_process(*flags, "--crash-tokens", "14") as worker,
        linked(worker.address()) as (link, inbox),
    ):
        incarnation = inbox.next(Connected).info.incarnation
        plan = empty_plan(1, incarnation)
        if killed:
            link.send(plan)
            worker.stop(signal.SIGKILL)
        else:
            one = np.ones(1, np.int32)
            new = NewRow(0, "r", np.full(1, 14, np.int32), 1, one, 0.0, 0)
            zero, slots = np.zeros(1, np.int32), np.full(1, 16, np.int64)
            link.send(
                replace(
                    plan,
                    new_rows=[new],
                    rows=zero,
                    query_lens=one,
                    context_lens=one,
                    slot_mapping=slots,
                    samples=np.ones(1, bool),
                )
            )
        gone = inbox.next(Disconnected)
        assert gone.step_failed is not killed
        words = "DATA_LOSS: a step failed: RuntimeError: a crash token was computed"
        assert (gone.reason == words) is not killed


def test_a_worker_that_hangs_is_noticed_and_resumed_when_it_goes_on() -> None:
    times = {
        "grpc.keepalive_time_ms": 1000,
        "grpc.keepalive_timeout_ms": 500,
        "grpc.http2.ping_timeout_ms": 500,
    }
    options = [(name, times.get(name, value)) for name, value in CHANNEL_OPTIONS]
    assert times.keys() <= dict(options).keys()
    with (
        worker_process("--simulate", "--listen", "127.0.0.1:0") as worker,
        linked(worker.address(), channel_options=options) as (link, inbox),
    ):
        incarnation = inbox.next(Connected).info.incarnation
        worker.process.send_signal(signal.SIGSTOP)
        process = psutil.Process(worker.process.pid)
        # A moment after the signal: until then it answers.
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "it stands still")
        link.send(empty_plan(1, incarnation))
        # Before it hung it may have seemed to, if the machine stood still: then it was resumed.
        assert "ping timeout" in inbox.next(Disconnected, Connected).reason
        link.send(empty_plan(2, incarnation))
        worker.process.send_signal(signal.SIGCONT)
        assert inbox.next(Connected).resumed
        steps = [inbox.next(StepAnswer, Connected).step_id for _ in range(2)]
        assert steps == [1, 2]


def test_a_worker_that_was_given_up_is_reset_before_it_is_used_again() -> None:
    device = HeldExecutor()
    with running_worker(device) as worker, linked(worker.address) as (link, inbox):
        first = inbox.next(Connected).info.incarnation
        link.send(empty_plan(1, first))
        link.give_up()
        assert "did not answer in time" in inbox.next(Disconnected).reason
        connected = inbox.next(Connected)
        assert not connected.resumed
        assert connected.info.incarnation == worker.session.status().incarnation != first
        link.give_up()
        assert inbox.next(Connected).info.incarnation not in (first, connected.info.incarnation)
        device.release()


def test_closing_ends_the_stream_whatever_the_link_is_doing(tmp_path: Path) -> None:
    with linked(f"unix:{tmp_path}/none") as (_, inbox):
        inbox.next(Disconnected)
    device = HeldExecutor()
    with running_worker(device) as worker:
        with linked(worker.address) as (link, inbox):
            link.send(empty_plan(1, inbox.next(Connected).info.incarnation))
        assert inbox.empty()
        device.release()
    with socket.socket() as silent:  # accepts connections and never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with linked(f"127.0.0.1:{silent.getsockname()[1]}"):
            silent.accept()[0].close()
    GrpcWorkerLink(f"unix:{tmp_path}/none").close()
