"""Calls on their way, and what is made ready before."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from deploy.loadtest import calls as module
from deploy.loadtest.calls import Calls
from deploy.loadtest.record import Record
from deploy.loadtest.stock import Opening, Stock
from deploy.loadtest.workload import Request
from tests.waiting import until


class Silent:
    """A target whose server never says anything; an exchange that notes its cancel."""

    def __init__(self, sends: bool = True) -> None:
        self.sends = sends
        self.cancels = 0

    def begin(self, _payload: Any, record: Record) -> Silent:
        if self.sends:
            record.mark_sent()
        return self

    def cancel(self) -> None:
        self.cancels += 1


def a_request(index: int = 0, cancel_after: int | None = None) -> Request:
    return Request(index, (1,), 1, 4, cancel_after, False, 0, 0, "")


def begin(target: Silent, timeout: float, cancel_after: int | None = None) -> tuple[Calls, Record]:
    calls = Calls(target, timeout)  # type: ignore[arg-type]
    record = Record(a_request(0, cancel_after), time.monotonic(), 0, "id")
    ended: list[Record] = []
    calls.send(b"", record, ended.append)
    assert ended == []
    return calls, record


async def test_a_server_that_forgets_the_deadline_does_not_hold_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_GRACE", 0.0)
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.01)
    target = Silent()
    calls, record = begin(target, 0.05)
    watching = asyncio.create_task(calls.watch())
    await until(lambda: record.ended is not None, "the request was ended")
    watching.cancel()
    assert record.status == "DEADLINE_EXCEEDED"
    assert (record.ended or 0) - record.planned >= 0.05
    assert target.cancels == 1
    assert calls.counts == (1, 1, 1, 0)


async def test_a_request_that_is_to_get_nothing_is_cancelled_soon_after_it_was_sent() -> None:
    target = Silent()
    calls, record = begin(target, 60, cancel_after=0)
    await until(lambda: record.ended is not None, "the request was cancelled")
    assert (record.status, record.cancelled) == ("CANCELLED", True)
    assert target.cancels == 1
    assert calls.counts == (1, 1, 0, 0)


async def test_a_request_that_never_went_out_is_not_sent() -> None:
    target = Silent(sends=False)
    calls, record = begin(target, 60)
    calls.give_up()
    assert (record.status, record.sent, target.cancels) == ("NOT_SENT", None, 1)


async def test_the_first_end_of_a_request_counts() -> None:
    calls, record = begin(Silent(), 60)
    record.end("OK")
    ended = record.ended
    record.end("INTERNAL", "late")
    calls.give_up()
    assert (record.status, record.detail, record.ended) == ("OK", "", ended)
    assert calls.counts == (1, 1, 0, 0)


def a_stock(count: int, size: int, made: list[int]) -> Stock:
    def make(conversation: int) -> Opening:
        made.append(conversation)
        return Opening(a_request(conversation), b"", iter(()))

    return Stock(range(count), make, size)


def test_a_stock_holds_so_many_ready_and_gives_all_in_order() -> None:
    made: list[int] = []
    stock = a_stock(5, 2, made)
    stock.fill()
    assert made == [0, 1]
    taken = [opening.request.index for _ in range(5) if (opening := stock.take())]
    assert taken == made == [0, 1, 2, 3, 4]
    assert stock.take() is None


async def test_a_stock_is_filled_again_in_idle_turns_of_the_loop() -> None:
    made: list[int] = []
    stock = a_stock(9, 3, made)
    filling = asyncio.create_task(stock.keep_filled())
    await until(lambda: made == [0, 1, 2], "the stock was filled")
    stock.take()
    await until(lambda: len(made) == 4, "the stock was filled again")
    filling.cancel()
    assert made == [0, 1, 2, 3]
