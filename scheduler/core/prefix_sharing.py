"""When a row's blocks become known to the prefix cache, and what a request finds there."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from scheduler.core.block_table import BlockTables
from scheduler.core.hold import Hold
from scheduler.core.prefix_cache import Prefix, PrefixCache
from scheduler.core.request import NO_ROW, Request
from scheduler.core.rows import Rows


class PrefixSharing:
    """The rows' dealings with the prefix cache.

    A block is published once answered steps have written all of it. Its tokens were accepted
    by then, as each was the input of one of those steps. No step writes to it any more: those
    in flight write behind it. What a row has computed and not published when it leaves is
    lost: steps in flight are still to write there.

    Every row's table begins with `published` blocks of one chain of prefixes. Two rows that
    compute the same tokens at once fill a block each, and the first is published; the other
    row is *apart* from there on: what it computes behind has no chain in its own table, and is
    published when it leaves, below the other's block, when nobody holds it. (Held behind a
    block that nobody holds, it would keep the cache from giving that away.)
    """

    def __init__(self, tables: BlockTables, rows: Rows, hold: Hold, enabled: bool) -> None:
        self.enabled = enabled
        self.cache = PrefixCache(tables.allocator, tables.block_size)
        self.published = np.zeros(rows.max_rows, np.int64)  # blocks
        self.apart = np.zeros(rows.max_rows, bool)
        self._tables = tables
        self._allocator = tables.allocator
        self._rows = rows
        self._rewrites = hold is not Hold.NOTHING

    def find(self, request: Request) -> list[Prefix]:
        """What a waiting request finds at this moment."""
        if self.enabled:
            self.cache.find(request.tokens, request.found)
        return request.found

    def num_held(self, found: list[Prefix]) -> int:
        """How many of the blocks found are held by others; the first ones, as whoever holds
        one holds those before it. The rest counts as free, and is taken from that."""
        references = self._allocator.references
        return bisect_left(found, True, key=lambda prefix: not references[prefix.block])

    def enter(self, request: Request) -> int:
        """Gives a request's row, just taken, the blocks that it finds; returns their tokens."""
        row, found = request.row, self.find(request)
        self._tables.share(row, np.array([prefix.block for prefix in found], np.int32))
        self.published[row], self.apart[row] = len(found), False
        tokens = len(found) * self._tables.block_size
        self._rows.computed[row] = self._rows.written[row] = tokens
        request.found = []
        return tokens

    def answered(self, at: np.ndarray, context_lens: np.ndarray) -> None:
        """Answered steps have written so many tokens of the rows `at`; publishes their full
        blocks."""
        if not self.enabled:
            return
        rows = self._rows
        if self._rewrites:  # the last slot of a row at its limit, over and over
            context_lens = np.minimum(context_lens, rows.limit[at] - 2)
        rows.written[at] = context_lens
        full = context_lens // self._tables.block_size
        more = (full > self.published[at]) & ~self.apart[at]
        for row, end in zip(at[more].tolist(), full[more].tolist(), strict=True):
            self._publish(row, end)

    def leave(self, row: int) -> None:
        """Gives all of the row's blocks back."""
        chain = self._publish_rest(row) if self.apart[row] else []
        self._tables.release(row)
        for prefix in chain:  # in the order in which they may be taken
            self._allocator.touch(prefix.block)
        self.published[row], self.apart[row] = 0, False

    def withdraw(self, request: Request) -> None:
        """Forgets whatever the request shares or has published, and what others built on it,
        as its K/V may be damaged. The row, if it has one, publishes no more."""
        if request.row == NO_ROW:
            first = next(iter(self.find(request)), None)
        else:
            first = self._last(request.row, min(1, int(self.published[request.row])))
            self.apart[request.row] = False
        if first is not None and first is not self.cache.root:
            self.cache.forget(first)

    def _publish(self, row: int, end: int) -> None:
        """The row's full blocks up to the `end`th, as far as they are the first with their
        tokens."""
        count = int(self.published[row])
        prefix = self._last(row, count)
        while prefix is not None and count < end:
            tokens, block = self._block(row, count)
            if tokens in prefix.children:
                break
            prefix = self.cache.add(prefix, tokens, block)
            count += 1
        self.published[row], self.apart[row] = count, count < end

    def _publish_rest(self, row: int) -> list[Prefix]:
        """What a row apart has computed. Returns its whole chain, some of which is in other
        blocks than its own."""
        count = int(self.published[row])
        prefix = self._last(row, count)
        if prefix is None:
            return []
        for index in range(count, int(self._rows.written[row]) // self._tables.block_size):
            tokens, block = self._block(row, index)
            prefix = prefix.children.get(tokens) or self.cache.add(prefix, tokens, block)
        return prefix.chain()

    def _last(self, row: int, count: int) -> Prefix | None:
        """The prefix of the row's first `count` blocks; None if it was withdrawn."""
        if not count:
            return self.cache.root
        return self.cache.by_block[int(self._tables.table(row)[count - 1])]

    def _block(self, row: int, index: int) -> tuple[bytes, int]:
        """Tokens and id of a block of the row's table."""
        start = index * self._tables.block_size
        tokens = self._rows.tokens[row, start : start + self._tables.block_size]
        return tokens.tobytes(), int(self._tables.blocks[row, index])
