"""Which full blocks may be shared: what beginnings of requests are in the pool, and where."""

from __future__ import annotations

import itertools

import numpy as np

from scheduler.core.block_allocator import BlockAllocator

ROOT = 0  # the prefix of no tokens, which is in no block

_PARENT_BYTES = 8  # of a key


def _key(before: int, tokens: bytes) -> bytes:
    return before.to_bytes(_PARENT_BYTES, "little") + tokens


class PrefixCache:
    """The known prefixes: beginnings of requests, each of which ends with a full block of the pool.

    A prefix is a number that is used once. Its key is the number of the prefix that is one block
    shorter, with the token ids of its last block. A dictionary compares keys that have one hash,
    so that a hit means that every token is the same: K/V of equal tokens at equal positions are
    equal, and of no others. A hash alone, however long, would leave that to chance, or to whoever
    can choose prompts; the ids cost 4 bytes a position, where K/V cost thousands.

    The cache knows blocks and decides nothing about them: a block stays in the pool while
    somebody holds it, and then until the allocator needs it. Whoever holds a prefix's block
    holds those before it as well, and a row gives its last block back first. So of the cached
    blocks the one released longest ago, which is taken next, never has a known one behind it.

    Numbers and bytes in a few containers, so that the garbage collector, which may run between
    any two steps, has nothing to look through however large the pool.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[int, int] = {}  # the last block of each prefix
        self.by_block = [ROOT] * allocator.num_blocks  # the prefix that ends there; ROOT: none
        self._keys = [b""] * allocator.num_blocks  # by block
        self._prefixes: dict[bytes, int] = {}  # by key
        self._numbers = itertools.count(ROOT + 1)
        self._allocator = allocator
        allocator.on_evict = self._forget_block

    def find(self, tokens: np.ndarray, found: list[int]) -> None:
        """Brings `found` up to date, which is empty or what this found before: the prefixes of
        `tokens`, int32 [n], each one block longer than the one before it. They leave at least
        one token out, for somebody has to compute what follows the last one. A second look
        costs only what has changed."""
        while found and found[-1] not in self.blocks:
            found.pop()
        size, prefix = self.block_size, found[-1] if found else ROOT
        for start in range(len(found) * size, len(tokens) - size, size):
            longer = self.longer(prefix, tokens[start : start + size].tobytes())
            if longer is None:
                return
            found.append(longer)
            prefix = longer

    def longer(self, prefix: int, tokens: bytes) -> int | None:
        """The known prefix that has one more block, of `tokens`."""
        return self._prefixes.get(_key(prefix, tokens))

    def add(self, before: int, blocks: list[int], tokens: list[bytes]) -> int:
        """Makes known that `blocks`, one behind the other and held, have the K/V of `tokens`,
        int32 of each, behind those of `before`. Stops where another block is known for them;
        returns how many blocks were added."""
        prefix, count = before, 0
        for block, key_tokens in zip(blocks, tokens, strict=True):
            key = _key(prefix, key_tokens)
            if key in self._prefixes:
                break
            self._allocator.keep(block)
            prefix = next(self._numbers)
            self._prefixes[key] = prefix
            self.blocks[prefix] = block
            self.by_block[block] = prefix
            self._keys[block] = key
            count += 1
        return count

    def forget(self, prefix: int) -> None:
        """Forgets a prefix and all that begin with it. Who holds their blocks keeps them."""
        longer: dict[int, list[int]] = {}
        for number, block in self.blocks.items():
            longer.setdefault(self.before(block), []).append(number)
        gone = [prefix]
        while gone:
            prefix = gone.pop()
            gone += longer.get(prefix, [])
            block = self.blocks[prefix]
            self._forget_block(block)
            self._allocator.forget(block)

    def before(self, block: int) -> int:
        """The prefix that is one block shorter than the one that ends with `block`."""
        return int.from_bytes(self._keys[block][:_PARENT_BYTES], "little")

    def chain(self, prefix: int) -> list[int]:
        """The blocks of a prefix, the last one first."""
        found = []
        while prefix != ROOT:
            found.append(block := self.blocks[prefix])
            prefix = self.before(block)
        return found

    def _forget_block(self, block: int) -> None:
        del self._prefixes[self._keys[block]], self.blocks[self.by_block[block]]
        self.by_block[block], self._keys[block] = ROOT, b""
