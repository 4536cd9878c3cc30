"""One engine, many front ends: who gets which event, and what is left of the dead."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict

import numpy as np
import pytest

from scheduler.core.front_end import (
    Abort,
    CallTotals,
    EngineStatus,
    EventBatch,
    FailureKind,
    FinishReason,
    SnapshotRequest,
    Submission,
)
from scheduler.fronts.frames import FrameReader
from scheduler.fronts.handles import COUNT_BITS, first_handle
from scheduler.fronts.hub import Hub, split
from scheduler.fronts.messages import MessageError
from tests.scheduler.fronts import examples
from tests.scheduler.fronts.examples import plain


class RecordingEngine:
    def __init__(self) -> None:
        self.log: list[object] = []
        self.calls = CallTotals()
        self.now = examples.status(random.Random(0))

    def submit(self, submission: Submission) -> None:
        self.log.append(submission)

    def abort(self, abort: Abort) -> None:
        self.log.append(abort)

    def ask_snapshot(self, request: SnapshotRequest) -> None:
        self.log.append(request)

    def report(self, totals: CallTotals) -> None:
        self.calls = totals

    def status(self) -> EngineStatus:
        return self.now

    def drain(self, deadline: float) -> None:
        self.log.append(deadline)


class Inbox:
    """What one front end was sent."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self.messages: list[object] = []

    def __call__(self, frames: bytes) -> None:
        self.messages.extend(self._reader.feed(frames))

    def take(self) -> list[object]:
        taken, self.messages = self.messages, []
        return taken


@pytest.fixture
def engine() -> RecordingEngine:
    return RecordingEngine()


@pytest.fixture
def hub(engine: RecordingEngine) -> Hub:
    hub = Hub()
    hub.attach(engine)
    return hub


def joined(hub: Hub, number: int) -> Inbox:
    inbox = Inbox()
    hub.join(number, inbox)
    inbox.take()
    return inbox


def token_events(batch: EventBatch) -> list[tuple]:
    """Handle, token and log-probabilities of each."""
    count = len(batch.handles)
    logprobs = batch.logprobs.by_token(count) if batch.logprobs else [None] * count
    return list(zip(batch.handles.tolist(), batch.token_ids.tolist(), logprobs, strict=True))


def slowly_split(batch: EventBatch) -> dict[int, tuple[list, list, list]]:
    """The oracle: event by event."""
    parts: dict[int, tuple[list, list, list]] = defaultdict(lambda: ([], [], []))
    for handle, token_id, logprobs in token_events(batch):
        parts[handle // 2**COUNT_BITS][0].append((handle, token_id, logprobs))
    for place, events in ((1, batch.ends), (2, batch.snapshots)):
        for event in events:
            parts[event.handle // 2**COUNT_BITS][place].append(event)
    return parts


def handle_of(number: int, count: int) -> int:
    return first_handle(number) + count - 1


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_is_split_as_event_by_event(seed: int) -> None:
    rng = random.Random(seed)
    numbers = rng.sample([1, 2, 3, 2**22 - 1], rng.randint(1, 4))
    counts = [1, 2, 77, 2**COUNT_BITS - 1]
    batch = examples.batch(rng, [handle_of(n, count) for n in numbers for count in counts])
    got = {
        number: (
            token_events(part),
            part.ends,
            part.snapshots,
        )
        for number, part in split(batch).items()
    }
    assert got.keys() == slowly_split(batch).keys()
    for number, part in slowly_split(batch).items():
        assert [plain(list(got[number][i])) for i in range(3)] == [plain(list(p)) for p in part]


def submit(hub: Hub, number: int, count: int) -> int:
    """Its handle."""
    made = examples.submission(random.Random(count), 3)
    hub.received(number, dataclasses.replace(made, handle=handle_of(number, count)))
    return hub._engine.log[-1].handle


def tokens(*pairs: tuple[int, int]) -> EventBatch:
    handles, ids = zip(*pairs, strict=True) if pairs else ((), ())
    return EventBatch(np.array(handles, np.int64), np.array(ids, np.int32))


def finished(handle: int) -> EventBatch:
    batch = tokens((handle, 9))
    batch.ends.append(examples.finished(random.Random(0), handle))
    return batch


def test_each_front_end_has_its_own_requests_events(hub: Hub, engine: RecordingEngine) -> None:
    first, second = joined(hub, 1), joined(hub, 2)
    a, b = submit(hub, 1, 5), submit(hub, 2, 5)
    assert a != b
    hub.deliver(tokens((a, 10), (b, 20), (a, 11)))
    assert plain(first.take()) == plain([tokens((a, 10), (a, 11))])
    assert plain(second.take()) == plain([tokens((b, 20))])
    asked = SnapshotRequest(handle_of(1, 6), block_map=True)
    hub.received(1, asked)
    hub.received(2, Abort(b, FinishReason.STOP, 1))
    assert engine.log[-2:] == [asked, Abort(b, FinishReason.STOP, 1)]


@pytest.mark.parametrize(
    "message",
    [
        dataclasses.replace(examples.submission(random.Random(0), 3), handle=handle_of(1, 5)),
        Abort(handle_of(1, 5), FailureKind.CANCELLED),
        SnapshotRequest(handle_of(1, 5), block_map=True),
    ],
)
def test_a_request_of_another_front_end_is_not_taken(
    hub: Hub, engine: RecordingEngine, message
) -> None:
    joined(hub, 1)
    joined(hub, 2)
    with pytest.raises(MessageError, match=rf"handle {message.handle}, .* of front end 2$"):
        hub.received(2, message)
    assert engine.log == []


def test_whoever_hears_of_an_end_knows_the_status_behind_it(
    hub: Hub, engine: RecordingEngine
) -> None:
    inbox, other = joined(hub, 1), joined(hub, 2)
    handle = submit(hub, 1, 5)
    engine.now = examples.status(random.Random(1))
    hub.deliver(finished(handle))
    assert plain(inbox.take()) == plain([engine.now, finished(handle)])
    assert other.take() == []


def test_the_status_is_told_to_all_once_for_each_turn_of_the_engine(
    hub: Hub, engine: RecordingEngine
) -> None:
    inboxes = [joined(hub, 1), joined(hub, 2)]
    hub.tell_status()
    hub.tell_status()
    assert [inbox.take() for inbox in inboxes] == [[engine.now]] * 2
    engine.now = examples.status(random.Random(1))
    hub.tell_status()
    assert [inbox.take() for inbox in inboxes] == [[engine.now]] * 2
    hub.status_changed(engine.now)
    assert [inbox.take() for inbox in inboxes] == [[engine.now]] * 2


def test_the_calls_of_a_dead_front_end_are_aborted_and_those_of_others_are_not(
    hub: Hub, engine: RecordingEngine
) -> None:
    _, other = joined(hub, 1), joined(hub, 2)
    open_, ended, cancelled, stopped = (submit(hub, 1, count) for count in (1, 2, 3, 4))
    others = submit(hub, 2, 1)
    hub.deliver(finished(ended))
    hub.received(1, Abort(cancelled, FailureKind.CANCELLED))
    hub.received(1, Abort(stopped, FinishReason.STOP, 2))
    engine.log.clear()
    hub.leave(1)
    aborted = {Abort(open_, FailureKind.CANCELLED), Abort(stopped, FailureKind.CANCELLED)}
    assert set(engine.log) == aborted
    assert len(engine.log) == 2
    late = tokens((open_, 1), (others, 2))
    late.ends.append(examples.failure(random.Random(0), cancelled))
    hub.deliver(late)
    hub.deliver(finished(open_))
    assert plain(other.take()) == plain([tokens((others, 2))])
    joined(hub, 3)
    assert submit(hub, 3, 1) not in (open_, others)


def test_the_engine_gets_the_sum_of_what_all_count_the_dead_included(
    hub: Hub, engine: RecordingEngine
) -> None:
    for number in (1, 2):
        joined(hub, number)
    hub.received(1, CallTotals({"stop": 1, "length": 2}, {}, 10, 100))
    hub.received(2, CallTotals({"stop": 5}, {"queue full": 1}, 20, 200))
    hub.received(1, CallTotals({"stop": 3, "length": 2}, {"invalid": 1}, 30, 300))
    both = CallTotals({"stop": 8, "length": 2}, {"queue full": 1, "invalid": 1}, 50, 500)
    assert engine.calls == both
    for count in (1, 2, 3):
        submit(hub, 1, count)
    hub.leave(1)
    both.outcomes["unavailable"] = 3
    assert engine.calls == both
    joined(hub, 3)
    hub.received(3, CallTotals({"stop": 1}, {}, 1, 1))
    hub.leave(3)
    both.outcomes["stop"] += 1
    both.prompt_tokens += 1
    both.output_tokens += 1
    assert engine.calls == both
