"""The pool's blocks: which are free, and how many tables list each of the others."""

from __future__ import annotations

import numpy as np

SCRATCH_BLOCK = 0


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for; nothing was taken."""


class BlockAllocator:
    """A fixed pool of blocks with reference counts.

    Block 0 is the scratch block: pads point there, and it is never given away. A
    block that was freed last is given away first, so that a small load touches
    little memory.
    """

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` counts the scratch block. Raises ValueError below 2."""
        if num_blocks < 2:
            raise ValueError(
                f"num_blocks is {num_blocks}, but the scratch block and one to use need 2"
            )
        self.num_blocks = num_blocks
        self.references = np.zeros(num_blocks, np.int32)
        self._free = np.arange(num_blocks - 1, SCRATCH_BLOCK, -1, dtype=np.int32)
        self._num_free = num_blocks - 1

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def free_blocks(self) -> np.ndarray:
        """A copy of the free list, int32 [num_free], the next to be given last."""
        return self._free[: self._num_free].copy()

    def allocate(self, count: int) -> np.ndarray:
        """Takes `count` blocks with one reference each: int32 [count]. Raises
        OutOfBlocks and takes none if fewer are free."""
        if count > self._num_free:
            raise OutOfBlocks(f"{count} blocks were asked for, {self._num_free} are free")
        start = self._num_free - count
        blocks = self._free[start : self._num_free][::-1].copy()
        self._num_free = start
        self.references[blocks] = 1
        return blocks

    def share(self, blocks: np.ndarray) -> None:
        """Adds one reference to each block. Raises ValueError, changing nothing, if
        one of them is not held."""
        self._check_ids(blocks)
        if (self.references[blocks] == 0).any():
            block = int(blocks[self.references[blocks] == 0][0])
            raise ValueError(f"block {block} is free and cannot be shared")
        np.add.at(self.references, blocks, 1)

    def release(self, blocks: np.ndarray) -> None:
        """Takes one reference from each block, once for each time it is listed; those
        without any become free. Raises ValueError, changing nothing, if a block has
        fewer references than that (a double free)."""
        self._check_ids(blocks)
        ids, counts = np.unique(blocks, return_counts=True)
        short = self.references[ids] < counts
        if short.any():
            raise ValueError(
                f"block {int(ids[short][0])} was released more often than it was taken"
            )
        self.references[ids] -= counts.astype(np.int32)
        freed = ids[self.references[ids] == 0]
        self._free[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)

    def _check_ids(self, blocks: np.ndarray) -> None:
        outside = (blocks <= SCRATCH_BLOCK) | (blocks >= self.num_blocks)
        if outside.any():
            raise ValueError(f"block {int(blocks[outside][0])} is outside 1..{self.num_blocks - 1}")
