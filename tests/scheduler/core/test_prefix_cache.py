from __future__ import annotations

import numpy as np
import pytest

from scheduler.core import prefix_cache
from scheduler.core.block_allocator import BlockAllocator
from scheduler.core.prefix_cache import ROOT, PrefixCache


class Pool:
    """Blocks of 2 tokens. Beginnings are put in as a request would: all blocks held, published
    and given back together."""

    def __init__(self, num_blocks: int = 12) -> None:
        self.allocator = BlockAllocator(num_blocks)
        self.cache = PrefixCache(self.allocator, block_size=2)

    def put(self, *tokens: int) -> list[int]:
        found = self.find(*tokens, 99)
        shared = np.array([self.cache.blocks[prefix] for prefix in found], np.int32)
        self.allocator.share(shared)
        own = self.allocator.allocate(len(tokens) // 2 - len(found))
        prefix = found[-1] if found else ROOT
        starts = range(2 * len(found), len(tokens), 2)
        keys = [ids(tokens[start : start + 2]).tobytes() for start in starts]
        assert self.cache.add(prefix, own.tolist(), keys) == len(own)
        blocks = np.append(shared, own)
        self.allocator.release(blocks)
        return blocks.tolist()

    def find(self, *tokens: int) -> list[int]:
        found: list[int] = []
        self.cache.find(ids(tokens), found)
        return found

    def blocks(self, *tokens: int) -> list[int]:
        return [self.cache.blocks[prefix] for prefix in self.find(*tokens)]


def ids(tokens: tuple[int, ...]) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_full_blocks_with_the_same_tokens_before_them_are_found() -> None:
    pool = Pool()
    a, b, c = pool.put(1, 2, 3, 4, 5, 6)
    assert pool.blocks(1, 2, 3, 4, 5, 6, 7, 8) == [a, b, c]
    assert pool.blocks(1, 2, 3, 4, 5, 9) == [a, b]
    assert pool.blocks(1, 2, 9, 4, 5, 6) == [a]
    assert pool.blocks(3, 4, 5, 6) == [], "the same tokens behind others are another thing"
    assert pool.blocks(9, 2, 3, 4) == []


@pytest.mark.parametrize(("length", "found"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)])
def test_the_last_token_is_left_to_be_computed(length: int, found: int) -> None:
    pool = Pool()
    pool.put(1, 2, 3, 4, 5, 6)
    assert len(pool.find(*(1, 2, 3, 4, 5, 6)[:length])) == found


class OneHash(bytes):
    """Bytes of which the hash tells nothing apart."""

    def __hash__(self) -> int:
        return 0


def test_with_one_hash_for_all_only_equal_tokens_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = prefix_cache._key
    monkeypatch.setattr(prefix_cache, "_key", lambda *of: OneHash(real(*of)))
    pool = Pool(num_blocks=40)
    blocks = {}
    for first in range(6):
        tokens = [token for second in range(6) for token in (first, second)]
        blocks[first] = pool.put(*tokens)
    assert len({block for some in blocks.values() for block in some}) == 36
    for first in range(6):
        tokens = [token for second in range(6) for token in (first, second)]
        assert pool.blocks(*tokens, 0) == blocks[first]
        assert pool.blocks(first, 0, first, 0, 0) == blocks[first][:1]
    assert pool.blocks(0, 6, 0, 0) == []


class Tokens:
    """Tokens that count how many blocks of them were looked at."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = ids(tokens)
        self.looks = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: slice) -> np.ndarray:
        self.looks += 1
        return self.tokens[place]


def test_looking_again_costs_only_what_has_changed() -> None:
    pool = Pool()
    pool.put(1, 2, 3, 4, 5, 6)
    found: list[int] = []
    tokens = Tokens(1, 2, 3, 4, 5, 6, 7, 8, 9, 9)

    def looks() -> int:
        before = tokens.looks
        pool.cache.find(tokens, found)  # type: ignore[arg-type]
        return tokens.looks - before

    assert (looks(), len(found)) == (4, 3)
    assert [looks() for _ in range(5)] == [1] * 5
    pool.put(1, 2, 3, 4, 5, 6, 7, 8)
    assert (looks(), len(found)) == (1, 4)
    assert [looks() for _ in range(5)] == [0] * 5, "the last token is in the next block"
    pool.allocator.release(pool.allocator.allocate(pool.allocator.num_free - 2))
    assert (looks(), len(found)) == (1, 2)


def test_the_end_of_what_was_used_longest_ago_is_forgotten_first() -> None:
    pool = Pool(num_blocks=7)
    a, b, c = pool.put(1, 2, 3, 4, 5, 6)
    d, e, f = pool.put(7, 8, 9, 10, 11, 12)
    assert pool.allocator.num_cached == 6
    assert pool.allocator.allocate(1).tolist() == [c]
    assert pool.blocks(1, 2, 3, 4, 5, 6, 7) == [a, b]
    pool.put(1, 2)  # is used again
    assert sorted(pool.allocator.allocate(3).tolist()) == sorted([b, f, e])
    assert pool.blocks(7, 8, 9, 10, 11, 12, 0) == [d]
    assert pool.blocks(1, 2, 3, 4, 5, 6, 7) == [a]


def test_a_block_that_was_taken_for_something_else_is_found_no_more() -> None:
    pool = Pool(num_blocks=4)
    pool.put(1, 2, 3, 4, 5, 6)
    found = pool.find(1, 2, 3, 4, 5, 6, 7)
    pool.put(7, 8, 9, 10)
    assert [prefix in pool.cache.blocks for prefix in found] == [True, False, False]
    assert len(pool.find(1, 2, 3, 4, 5, 6, 7)) == 1
    assert len(pool.find(7, 8, 9, 10, 11)) == 2


def test_what_begins_with_a_forgotten_prefix_is_forgotten_too_and_holders_keep_their_blocks() -> (
    None
):
    pool = Pool()
    a, b, c = pool.put(1, 2, 3, 4, 5, 6)
    pool.put(1, 2, 7, 8)
    (d,) = pool.put(9, 9)
    pool.allocator.share(ids((a, b)))
    pool.cache.forget(pool.find(1, 2, 3, 4)[0])
    assert pool.blocks(1, 2, 3, 4, 5, 6, 7) == pool.blocks(1, 2, 7, 8, 9) == []
    assert pool.blocks(9, 9, 9) == [d]
    assert pool.allocator.references[[a, b, c]].tolist() == [1, 1, 0]
    assert pool.allocator.num_cached == 1
    pool.allocator.release(ids((a, b)))
    assert pool.allocator.num_cached == 1
    assert pool.allocator.num_free == pool.allocator.num_usable


def test_where_another_block_is_known_for_the_same_tokens_nothing_is_added() -> None:
    pool = Pool()
    a, b = pool.put(1, 2, 3, 4)
    c, d = pool.allocator.allocate(2).tolist()
    keys = [ids((3, 4)).tobytes(), ids((5, 6)).tobytes()]
    (first,) = pool.find(1, 2, 3)
    assert pool.cache.add(first, [c, d], keys) == 0
    assert pool.cache.add(first, [d], keys[1:]) == 1
    assert pool.blocks(1, 2, 3, 4, 0) == [a, b]
    assert pool.blocks(1, 2, 5, 6, 0) == [a, d]
    assert pool.allocator.kept[[c, d]].tolist() == [False, True]
