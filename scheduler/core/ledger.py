"""Who holds what: requests, rows and blocks, and every way in which they change hands."""

from __future__ import annotations

import itertools
from collections import deque

from scheduler.core.block_allocator import BlockAllocator
from scheduler.core.block_table import BlockTables
from scheduler.core.hold import Hold
from scheduler.core.prefix_sharing import PrefixSharing
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
        prefix_cache: bool = True,
    ) -> None:
        self.statistics = statistics
        self.totals = statistics.totals
        self.allocator = BlockAllocator(num_blocks)
        self.tables = BlockTables(self.allocator, block_size, max_rows, max_tokens)
        self.rows = Rows(max_rows, max_tokens)
        self.sharing = PrefixSharing(self.tables, self.rows, hold, prefix_cache)
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

    def blocks_for(self, request: Request, tokens: int) -> int:
        """Free blocks that one of the waiting takes, if it is given a row, to hold so many of
        its tokens: all but those of others that it shares."""
        found = self.sharing.find(request)
        return self.tables.blocks_for(tokens) - self.sharing.num_held(found)

    def to_compute(self, request: Request) -> int:
        """Known tokens of one of the waiting that are not in the pool; at least 1."""
        return len(request.tokens) - len(self.sharing.find(request)) * self.tables.block_size

    def enqueue(self, request: Request) -> None:
        request.found = []  # was of the pool before
        self.by_handle[request.handle] = request
        self.by_id[request.request_id] = request
        self.waiting.append(request)

    def admit_head(self, now: float) -> int:
        """Gives the first of the waiting a row."""
        return self.admit(self.waiting[0], now)

    def admit(self, request: Request, now: float) -> int:
        """Gives one of the waiting a row, with what the prefix cache has of its tokens."""
        self.waiting.remove(request)
        self.num_admitted += 1
        row = self.rows.take(request)
        found = self.sharing.enter(request)
        self._count_admission(request, found, now)
        return row

    def preempt(self, row: int) -> Request:
        """Puts the row's request back at its place among the waiting, which is the head
        unless one that arrived earlier was passed over. Tokens in flight stay its own; it
        is admitted again once they are answered."""
        unanswered = int(self.rows.known[row] - self.rows.accepted[row])
        self._count_preemption(row)
        request = self.vacate(row)
        request.unanswered = unanswered
        self.put_back(request)
        return request

    def put_back(self, request: Request) -> None:
        """To its place among the waiting."""
        ahead = itertools.takewhile(lambda other: other.order < request.order, self.waiting)
        self.waiting.insert(sum(1 for _ in ahead), request)

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
        rows = self.rows.runnable.nonzero()[0]
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

    def _count_admission(self, request: Request, found: int, now: float) -> None:
        """`found`: tokens of it in the prefix cache."""
        if request.started_at is None:
            request.started_at = now
            request.cached = found
            self.totals.prompt_tokens += request.prompt_len
            if self.sharing.enabled:
                self.totals.prefix_queries += request.prompt_len
                self.totals.prefix_hits += found
        again = max(0, request.lost - found)
        request.recomputed += again
        self.totals.recomputed_tokens += again
        request.lost = 0

    def _count_preemption(self, row: int) -> None:
        request = self.rows.request[row]
        request.preemptions += 1
        request.lost = int(self.rows.computed[row])
        self.totals.preemptions += 1

    def vacate(self, row: int) -> Request:
        """Takes row and blocks from their request."""
        self.sharing.leave(row)
        self.freed_rows.append(row)
        return self.rows.drop(row)
