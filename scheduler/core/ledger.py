"""Who holds what: requests, rows and blocks, and every way in which they change hands."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np

from scheduler.core.block_allocator import BlockAllocator
from scheduler.core.block_table import BlockTables
from scheduler.core.hold import Hold
from scheduler.core.request import NO_ROW, Request
from scheduler.core.rows import Rows
from scheduler.core.statistics import Statistics


class Ledger:
    """The books of one worker's pool and rows.

    A waiting request holds no row and no block. The waiting are in order of arrival.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        max_tokens: int,
        statistics: Statistics,
        hold: Hold,
    ) -> None:
        self.statistics = statistics
        self.totals = statistics.totals
        self.allocator = BlockAllocator(num_blocks)
        self.tables = BlockTables(self.allocator, block_size, max_rows, max_tokens)
        self.rows = Rows(max_rows, max_tokens)
        self.hold = hold
        self.waiting: deque[Request] = deque()
        self.by_handle: dict[int, Request] = {}
        self.by_id: dict[str, Request] = {}
        self.num_admitted = 0  # rows given so far
        # What the worker has yet to be told, with the next step.
        self.freed_rows: list[int] = []

    @property
    def num_requests(self) -> int:
        return len(self.by_handle)

    @property
    def num_running(self) -> int:
        """Requests that have a row. A row that outlives its request counts nowhere."""
        return len(self.by_handle) - len(self.waiting)

    def enqueue(self, request: Request) -> None:
        self.by_handle[request.handle] = request
        self.by_id[request.request_id] = request
        self.waiting.append(request)

    def admit_head(self, now: float) -> int:
        """Gives the first of the waiting a row."""
        return self.admit(self.waiting[0], now)

    def admit(self, request: Request, now: float) -> int:
        """Gives one of the waiting a row."""
        self.waiting.remove(request)
        self.num_admitted += 1
        if request.started_at is None:
            request.started_at = now
            self.totals.prompt_tokens += request.prompt_len
        return self.rows.take(request)

    def preempt(self, row: int) -> Request:
        """Puts the row's request back at its place among the waiting, which is the head
        unless one that arrived earlier was passed over. Tokens in flight stay its own; it
        is admitted again once they are answered."""
        unanswered = int(self.rows.known[row] - self.rows.accepted[row])
        self._count_preemption(row)
        request = self.vacate(row)
        request.unanswered = unanswered
        ahead = itertools.takewhile(lambda other: other.order < request.order, self.waiting)
        self.waiting.insert(sum(1 for _ in ahead), request)
        return request

    def end(self, request: Request, keep_row: bool = False) -> None:
        """Takes everything from a request, wherever it is; with `keep_row` all but its
        row and blocks. Raises ValueError if it has ended before."""
        if request.ended:
            raise ValueError(f"request {request.request_id} was ended twice")
        request.ended = True
        if request.row == NO_ROW:
            self.waiting.remove(request)
        elif not keep_row:
            self.vacate(request.row)
        del self.by_handle[request.handle]
        del self.by_id[request.request_id]

    def youngest_runnable(self, besides: int = NO_ROW) -> int:
        """The row to preempt first, not `besides`. Raises ValueError if none is runnable."""
        rows = np.flatnonzero(self.rows.runnable)
        rows = rows[rows != besides]
        return int(rows[self.rows.order[rows].argmax()])

    def close(self) -> list[Request]:
        """Takes every row away for good, as the pool behind them is lost: all
        requests, in order of arrival, with the tokens accepted so far."""
        requests = sorted(self.by_handle.values(), key=lambda request: request.order)
        for request in requests:
            request.unanswered = 0
            if request.row != NO_ROW:
                self._count_preemption(request.row)
                self.rows.drop(request.row)
        return requests

    def _count_preemption(self, row: int) -> None:
        request, computed = self.rows.request[row], int(self.rows.computed[row])
        request.preemptions += 1
        request.recomputed += computed
        self.totals.preemptions += 1
        self.totals.recomputed_tokens += computed

    def vacate(self, row: int) -> Request:
        """Takes row and blocks from their request."""
        self.tables.release(row)
        self.freed_rows.append(row)
        return self.rows.drop(row)
