"""Which full blocks may be shared: what beginnings of requests are in the pool, and where."""

from __future__ import annotations

import numpy as np

from scheduler.core.block_allocator import SCRATCH_BLOCK, BlockAllocator

NO_BLOCK = -1


class Prefix:
    """A beginning of requests that ends with a full block of the pool."""

    __slots__ = ("block", "children", "parent", "tokens")

    def __init__(self, block: int, tokens: bytes, parent: Prefix | None) -> None:
        self.block = block  # with its last tokens; NO_BLOCK once it is forgotten
        self.tokens = tokens  # those of that block, int32
        self.parent = parent  # without them
        self.children: dict[bytes, Prefix] = {}  # by the tokens of one more block

    def chain(self) -> list[Prefix]:
        """This one and all that it begins with, the longest first."""
        found, prefix = [], self
        while prefix.parent is not None:
            found.append(prefix)
            prefix = prefix.parent
        return found


class PrefixCache:
    """A tree of the known prefixes, one full block from each to the next.

    A key is a block's token ids themselves, below those of all blocks before it. A dictionary
    compares keys that have one hash, so that a hit means that every token is the same: K/V of
    equal tokens at equal positions are equal, and of no others. A hash alone, however long,
    would leave that to chance, or to whoever can choose prompts; the ids cost 4 bytes a
    position, where K/V cost thousands.

    The cache knows blocks and decides nothing about them: a block stays in the pool while
    somebody holds it, and then until the allocator needs it. Whoever holds a prefix's block
    holds those before it as well, and a row gives its last block back first. So of the cached
    blocks the one released longest ago, which is taken next, never has a known one behind it.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self.block_size = block_size
        self.root = Prefix(SCRATCH_BLOCK, b"", None)  # no tokens, in no block
        self.by_block: list[Prefix | None] = [None] * allocator.num_blocks
        self._allocator = allocator
        allocator.on_evict = self._evicted

    def find(self, tokens: np.ndarray, found: list[Prefix]) -> None:
        """Brings `found` up to date, which is empty or what this found before: the prefixes of
        `tokens`, int32 [n], each one block longer than the one before it. They leave at least
        one token out, for somebody has to compute what follows the last one. A second look
        costs only what has changed."""
        while found and found[-1].block == NO_BLOCK:
            found.pop()
        size, prefix = self.block_size, found[-1] if found else self.root
        for start in range(len(found) * size, len(tokens) - size, size):
            longer = prefix.children.get(tokens[start : start + size].tobytes())
            if longer is None:
                return
            found.append(longer)
            prefix = longer

    def add(self, before: Prefix, tokens: bytes, block: int) -> Prefix:
        """Makes known that `block`, which is held, has the K/V of `tokens`, int32, behind those
        of `before`. Raises ValueError if another block is known for them."""
        if tokens in before.children:
            raise ValueError(f"block {block} has what block {before.children[tokens].block} has")
        self._allocator.keep(block)
        prefix = before.children[tokens] = Prefix(block, tokens, before)
        self.by_block[block] = prefix
        return prefix

    def forget(self, prefix: Prefix) -> None:
        """Forgets a prefix and all that begin with it. Who holds their blocks keeps them."""
        self._cut(prefix)
        gone = [prefix]
        while gone:
            prefix = gone.pop()
            gone += prefix.children.values()
            self.by_block[prefix.block] = None
            self._allocator.forget(prefix.block)
            prefix.block = NO_BLOCK

    def _evicted(self, block: int) -> None:
        prefix = self.by_block[block]
        if prefix is None or prefix.children:
            raise RuntimeError(f"block {block} was taken, and a known one is behind it")
        self._cut(prefix)
        self.by_block[block] = None
        prefix.block = NO_BLOCK

    @staticmethod
    def _cut(prefix: Prefix) -> None:
        if prefix.parent is not None:
            del prefix.parent.children[prefix.tokens]
