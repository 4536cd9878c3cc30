"""The pool's blocks: which are free, and how many tables list each of the others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

SCRATCH_BLOCK = 0


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for; nothing was taken."""


class BlockAllocator:
    """A fixed pool of blocks with reference counts.

    Block 0 is the scratch block: pads point there, and it is never given away. A
    block that was freed last is given away first, so that a small load touches
    little memory.

    A block that is marked as kept and that no table lists is *cached*: it counts as free, and
    what was written to it stays until nothing else is free. Then the one that was released
    longest ago is taken.
    """

    def __init__(self, num_blocks: int) -> None:
        """`num_blocks` counts the scratch block. Raises ValueError below 2."""
        if num_blocks < 2:
            raise ValueError(
                f"num_blocks is {num_blocks}, but the scratch block and one to use need 2"
            )
        self.num_blocks = num_blocks
        self.references = np.zeros(num_blocks, np.int32)
        self.kept = np.zeros(num_blocks, bool)
        self.on_evict: Callable[[int], None] = _nothing  # called with a cached block it takes
        self._free = np.arange(num_blocks - 1, SCRATCH_BLOCK, -1, dtype=np.int32)
        self._num_free = num_blocks - 1  # in the list
        self._cached: OrderedDict[int, None] = OrderedDict()  # the next to be taken first

    @property
    def num_usable(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, cached ones among them."""
        return self._num_free + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def free_blocks(self) -> np.ndarray:
        """A copy of the free list, without the cached: int32 [n], the next to be given last."""
        return self._free[: self._num_free].copy()

    @property
    def cached_blocks(self) -> np.ndarray:
        """int32 [num_cached], the next to be taken first."""
        return np.fromiter(self._cached, np.int32, len(self._cached))

    def allocate(self, count: int) -> np.ndarray:
        """Takes `count` blocks with one reference each: int32 [count]. Raises
        OutOfBlocks and takes none if fewer are free."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks were asked for, {self.num_free} are free")
        for _ in range(count - self._num_free):
            self._evict()
        start = self._num_free - count
        blocks = self._free[start : self._num_free][::-1].copy()
        self._num_free = start
        self.references[blocks] = 1
        return blocks

    def share(self, blocks: np.ndarray) -> None:
        """Adds one reference to each block. Raises ValueError, changing nothing, if
        one of them is neither held nor cached."""
        self._check_ids(blocks)
        unheld = blocks[self.references[blocks] == 0].tolist()
        for block in unheld:
            if block not in self._cached:
                raise ValueError(f"block {block} is free and cannot be shared")
        for block in unheld:
            self._cached.pop(block, None)  # it may be listed twice
        np.add.at(self.references, blocks, 1)

    def release(self, blocks: np.ndarray) -> None:
        """Takes one reference from each block, once for each time it is listed; those
        without any become free or, if kept, cached: of these the last listed is taken first.
        Raises ValueError, changing nothing, if a block has fewer references than that (a double
        free)."""
        self._check_ids(blocks)
        np.subtract.at(self.references, blocks, 1)
        left = self.references[blocks]
        if np.count_nonzero(left < 0):
            np.add.at(self.references, blocks, 1)
            block = int(blocks[left < 0][0])
            raise ValueError(f"block {block} was released more often than it was taken")
        unheld = blocks[left == 0]
        kept = self.kept[unheld]
        if np.count_nonzero(kept):
            self._cached.update(dict.fromkeys(unheld[kept][::-1].tolist()))
            unheld = unheld[~kept]
        freed = list(dict.fromkeys(unheld.tolist()))  # each once
        self._free[self._num_free : self._num_free + len(freed)] = freed
        self._num_free += len(freed)

    def keep(self, block: int) -> None:
        """Marks a held block: it will be cached when nobody holds it any more. Raises
        ValueError if nobody does."""
        if not self.references[block]:
            raise ValueError(f"block {block} is not held and cannot be kept")
        self.kept[block] = True

    def forget(self, block: int) -> None:
        """Takes the mark away; a cached block is free then."""
        self.kept[block] = False
        if block in self._cached:
            del self._cached[block]
            self._put(block)

    def touch(self, block: int) -> None:
        """Of the cached blocks this one is to be taken last. Nothing if it is not cached."""
        if block in self._cached:
            self._cached.move_to_end(block)

    def _evict(self) -> None:
        block, _ = self._cached.popitem(last=False)
        self.kept[block] = False
        self._put(block)
        self.on_evict(block)

    def _put(self, block: int) -> None:
        self._free[self._num_free] = block
        self._num_free += 1

    def _check_ids(self, blocks: np.ndarray) -> None:
        outside = (blocks <= SCRATCH_BLOCK) | (blocks >= self.num_blocks)
        if np.count_nonzero(outside):
            raise ValueError(f"block {int(blocks[outside][0])} is outside 1..{self.num_blocks - 1}")


def _nothing(_: int) -> None:
    """Where nobody asks."""
