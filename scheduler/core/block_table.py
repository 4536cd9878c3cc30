"""Where each row's tokens lie in the pool: position -> block and offset -> slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.core.block_allocator import BlockAllocator


@dataclass(frozen=True, slots=True)
class Appended:
    """Blocks that tables grew by. Shapes: a tables."""

    rows: np.ndarray  # int32 [a]
    counts: np.ndarray  # int32 [a], >= 1
    blocks: np.ndarray  # int32 [sum of counts]


_NO_IDS = np.empty(0, np.int32)
_NONE = Appended(_NO_IDS, _NO_IDS, _NO_IDS)


class BlockTables:
    """One block table per row, as the lines of one array.

    A table grows only at a block border, and all tables of a step grow together or
    none does.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int, max_rows: int, max_tokens: int):
        """`max_tokens` is the most tokens of a row."""
        self.allocator = allocator
        self.block_size = block_size
        self.blocks = np.zeros((max_rows, -(-max_tokens // block_size)), np.int32)
        self.num_blocks = np.zeros(max_rows, np.int32)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens of one row."""
        return -(-tokens // self.block_size)

    def missing(self, rows: np.ndarray, context_lens: np.ndarray) -> np.ndarray:
        """Blocks that each row lacks to hold its context length: int64 [s]."""
        needed = -(-context_lens // self.block_size)
        return np.asarray(np.maximum(needed - self.num_blocks[rows], 0))

    def grow(self, rows: np.ndarray, context_lens: np.ndarray) -> Appended:
        """Extends the rows' tables to hold their context lengths. `rows` must hold no
        row twice. Raises OutOfBlocks, and moves no table, if the sum does not fit."""
        if len(rows) == 1:
            return self._grow_one(int(rows[0]), int(context_lens[0]))
        missing = self.missing(rows, context_lens)
        growing = missing > 0
        if not growing.any():
            return _NONE
        blocks = self.allocator.allocate(int(missing.sum()))
        rows, counts = rows[growing], missing[growing]
        owners = np.repeat(rows, counts)
        places = np.arange(len(blocks)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.blocks[owners, self.num_blocks[owners] + places] = blocks
        self.num_blocks[rows] += counts.astype(np.int32)
        return Appended(rows.astype(np.int32), counts.astype(np.int32), blocks)

    def _grow_one(self, row: int, context_len: int) -> Appended:
        before, needed = int(self.num_blocks[row]), self.blocks_for(context_len)
        if needed <= before:
            return _NONE
        blocks = self.allocator.allocate(needed - before)
        self.blocks[row, before:needed] = blocks
        self.num_blocks[row] = needed
        return Appended(np.array([row], np.int32), np.array([len(blocks)], np.int32), blocks)

    def share(self, row: int, blocks: np.ndarray) -> None:
        """Begins the row's empty table with blocks that are held or cached, int32 [b]."""
        self.allocator.share(blocks)
        self.blocks[row, : len(blocks)] = blocks
        self.num_blocks[row] = len(blocks)

    def slots(self, rows: np.ndarray, starts: np.ndarray, lens: np.ndarray) -> np.ndarray:
        """Slots of positions starts[i] .. starts[i] + lens[i] - 1 of each row, one row
        after the other: int64 [sum of lens]."""
        if len(rows) == 1:
            return self._slots_of_one(int(rows[0]), int(starts[0]), int(lens[0]))
        before = np.cumsum(lens) - lens
        positions = np.arange(int(lens.sum())) + np.repeat(starts - before, lens)
        blocks = self.blocks[np.repeat(rows, lens), positions // self.block_size]
        return np.asarray(blocks.astype(np.int64) * self.block_size + positions % self.block_size)

    def _slots_of_one(self, row: int, start: int, count: int) -> np.ndarray:
        size = self.block_size
        first, end = start // size, self.blocks_for(start + count)
        of_blocks = self.blocks[row, first:end, None] * np.int64(size) + np.arange(size)
        return np.asarray(of_blocks.ravel()[start - first * size :][:count])

    def table(self, row: int) -> np.ndarray:
        """The row's block ids in order: a view, int32 [n]."""
        return self.blocks[row, : self.num_blocks[row]]

    def release(self, row: int) -> None:
        """Gives all of the row's blocks back."""
        self.allocator.release(self.table(row))
        self.num_blocks[row] = 0
