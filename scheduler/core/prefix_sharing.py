"""When a row's blocks become known to the prefix cache, and what a request finds there."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from scheduler.core.block_table import BlockTables
from scheduler.core.hold import Hold
from scheduler.core.prefix_cache import ROOT, PrefixCache
from scheduler.core.request import NO_ROW, Request
from scheduler.core.rows import Rows


class PrefixSharing:
    """The rows' dealings with the prefix cache.

    A block is published once answered steps have written all of it. Its tokens were accepted
    by then, as each was the input of one of those steps. No step writes to it any more: those
    in flight write behind it. (A worker's attention counts on that: what lies before a row's last
    position is read while the step's own tokens are being written.) What a row has computed and
    not published when it leaves is lost: steps in flight are still to write there.

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
        self._rows = rows
        self._rewrites = hold is not Hold.NOTHING

    def find(self, request: Request) -> list[int]:
        """The prefixes that a waiting request finds at this moment."""
        if self.enabled:
            self.cache.find(request.tokens, request.found)
        return request.found

    def num_held(self, found: list[int]) -> int:
        """Of how many prefixes found the block is held by others; the first ones, as whoever
        holds one holds those before it. The rest counts as free, and is taken from that."""
        references, blocks = self._tables.allocator.references, self.cache.blocks
        return bisect_left(found, True, key=lambda prefix: not references[blocks[prefix]])

    def enter(self, request: Request) -> int:
        """Gives a request's row, just taken, the blocks that it finds; returns their tokens."""
        row, found = request.row, self.find(request)
        if not found:
            return 0
        blocks = [self.cache.blocks[prefix] for prefix in found]
        self._tables.share(row, np.array(blocks, np.int32))
        self.published[row] = len(found)
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
        if more.any():
            self._publish(at[more], full[more])

    def leave(self, row: int) -> None:
        """Gives all of the row's blocks back."""
        chain = self._publish_rest(row) if self.apart[row] else []
        self._tables.release(row)
        for block in chain:  # in the order in which they may be taken
            self._tables.allocator.touch(block)
        self.published[row], self.apart[row] = 0, False

    def withdraw(self, request: Request) -> None:
        """Forgets whatever the request shares or has published, and what others built on it,
        as its K/V may be damaged. The row, if it has one, publishes no more."""
        if request.row == NO_ROW:
            first = next(iter(self.find(request)), ROOT)
        else:
            table = self._tables.table(request.row)[: self.published[request.row]].tolist()
            first = self.cache.by_block[table[0]] if table else ROOT
            self.apart[request.row] = False
        if first != ROOT:
            self.cache.forget(first)

    def _publish(self, at: np.ndarray, full: np.ndarray) -> None:
        """So many full blocks of each of the rows `at`, as far as they are the first with their
        tokens."""
        counts = full - self.published[at]
        blocks, tokens = self._blocks(at, self.published[at], counts)
        added, start = [], 0
        for prefix, count in zip(self._last(at), counts.tolist(), strict=True):
            own = slice(start, start + count)
            added.append(0 if prefix is None else self.cache.add(prefix, blocks[own], tokens[own]))
            start += count
        self.published[at] += added
        self.apart[at] = added < counts

    def _publish_rest(self, row: int) -> list[int]:
        """What a row apart has computed. Returns the blocks of its whole chain, the last one
        first; some are others' than its own."""
        at = np.array([row])
        (prefix,) = self._last(at)
        if prefix is None:
            return []
        starts = self.published[at]
        counts = self._rows.written[at] // self._tables.block_size - starts
        blocks, tokens = self._blocks(at, starts, counts)
        for place, of_block in enumerate(tokens):
            longer = self.cache.longer(prefix, of_block)
            if longer is None:
                self.cache.add(prefix, blocks[place:], tokens[place:])
                return self.cache.chain(self.cache.by_block[blocks[-1]])
            prefix = longer
        return self.cache.chain(prefix)

    def _last(self, at: np.ndarray) -> list[int | None]:
        """The prefix of each row's published blocks; None if it was withdrawn."""
        counts = self.published[at]
        blocks = self._tables.blocks[at, np.maximum(counts - 1, 0)].tolist()
        by_block = self.cache.by_block
        return [
            (by_block[block] or None) if count else ROOT
            for block, count in zip(blocks, counts.tolist(), strict=True)
        ]

    def _blocks(
        self, at: np.ndarray, starts: np.ndarray, counts: np.ndarray
    ) -> tuple[list[int], list[bytes]]:
        """Ids and tokens of counts[i] blocks of each of the rows `at`, from the starts[i]th on."""
        rows, size = np.repeat(at, counts), self._tables.block_size
        places = np.arange(len(rows)) + np.repeat(starts + counts - np.cumsum(counts), counts)
        positions = places[:, None] * size + np.arange(size)
        tokens = self._rows.tokens[rows[:, None], positions]
        width, data = size * tokens.itemsize, tokens.tobytes()
        cut = [data[begin : begin + width] for begin in range(0, len(data), width)]
        return self._tables.blocks[rows, places].tolist(), cut
