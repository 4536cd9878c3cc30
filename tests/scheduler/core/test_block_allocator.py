import numpy as np
import pytest

from scheduler.core.block_allocator import BlockAllocator, OutOfBlocks


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_the_scratch_block_is_never_given_away() -> None:
    allocator = BlockAllocator(5)
    assert allocator.num_usable == 4
    assert sorted(allocator.allocate(4).tolist()) == [1, 2, 3, 4]
    assert allocator.num_free == 0


def test_asking_for_more_than_is_free_takes_nothing() -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(1)
    before = allocator.free_blocks.tolist()
    with pytest.raises(OutOfBlocks, match="3 blocks were asked for, 2 are free"):
        allocator.allocate(3)
    assert allocator.free_blocks.tolist() == before


def test_the_block_freed_last_is_given_first() -> None:
    allocator = BlockAllocator(6)
    blocks = allocator.allocate(3)
    allocator.release(blocks[1:2])
    assert allocator.allocate(1).tolist() == [blocks[1]]


def test_a_shared_block_is_free_after_its_last_release() -> None:
    allocator = BlockAllocator(3)
    block = allocator.allocate(1)
    allocator.share(block)
    allocator.release(block)
    assert allocator.num_free == 1
    allocator.release(block)
    assert allocator.num_free == 2


@pytest.mark.parametrize("blocks", [ids(2), ids(1, 1), ids(1, 2)])
def test_a_double_free_raises_and_changes_nothing(blocks: np.ndarray) -> None:
    allocator = BlockAllocator(4)
    assert allocator.allocate(1).tolist() == [1]
    with pytest.raises(ValueError, match="released more often than it was taken"):
        allocator.release(blocks)
    assert allocator.references.tolist() == [0, 1, 0, 0]
    assert sorted(allocator.free_blocks.tolist()) == [2, 3]


def test_sharing_a_free_block_raises() -> None:
    with pytest.raises(ValueError, match="block 1 is free"):
        BlockAllocator(3).share(ids(1))


@pytest.mark.parametrize("block", [0, -1, 3])
def test_ids_that_no_request_can_hold_are_refused(block: int) -> None:
    with pytest.raises(ValueError, match=rf"block {block} is outside 1\.\.2"):
        BlockAllocator(3).release(ids(block))


def test_a_pool_without_a_usable_block_is_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks is 1"):
        BlockAllocator(1)


def cached(*kept: int) -> BlockAllocator:
    """Of blocks 1 to 5 those that are `kept`, released together in that order; 5 is held."""
    allocator = BlockAllocator(6)
    blocks = allocator.allocate(5)
    assert blocks.tolist() == [1, 2, 3, 4, 5]
    for block in kept:
        allocator.keep(block)
    others = [block for block in range(1, 5) if block not in kept]
    allocator.release(ids(*kept, *others))
    return allocator


def test_a_kept_block_that_nobody_holds_counts_as_free_and_is_taken_last() -> None:
    allocator = cached(2, 3)
    assert (allocator.num_free, allocator.num_cached) == (4, 2)
    assert sorted(allocator.free_blocks.tolist()) == [1, 4]
    assert sorted(allocator.allocate(2).tolist()) == [1, 4]
    assert (allocator.num_free, allocator.num_cached) == (2, 2)


def test_of_cached_blocks_the_one_released_longest_ago_goes_first_and_the_last_listed() -> None:
    allocator = cached(2, 3)
    allocator.keep(5)
    allocator.release(ids(5))
    evicted: list[int] = []
    allocator.on_evict = evicted.append
    assert allocator.cached_blocks.tolist() == [3, 2, 5]
    assert allocator.allocate(4).tolist()[0] == 2
    assert evicted == [3, 2]
    assert allocator.kept.tolist() == [False] * 5 + [True]


def test_a_cached_block_can_be_shared_and_is_then_held() -> None:
    allocator = cached(2, 3)
    allocator.share(ids(2, 5, 2))
    assert allocator.references.tolist() == [0, 0, 2, 0, 0, 2]
    assert allocator.cached_blocks.tolist() == [3]
    with pytest.raises(ValueError, match="block 1 is free"):
        allocator.share(ids(3, 1))
    assert allocator.cached_blocks.tolist() == [3], "nothing was taken"


def test_a_block_that_is_forgotten_is_free_like_any_other() -> None:
    allocator = cached(2, 3)
    allocator.forget(2)
    assert allocator.cached_blocks.tolist() == [3]
    assert 2 in allocator.free_blocks
    allocator.keep(5)
    allocator.forget(5)
    allocator.release(ids(5))
    assert 5 in allocator.free_blocks


def test_a_touched_block_is_taken_last() -> None:
    allocator = cached(1, 2, 3)
    allocator.touch(3)
    allocator.touch(4)
    assert allocator.cached_blocks.tolist() == [2, 1, 3]


def test_a_block_that_nobody_holds_cannot_be_kept() -> None:
    with pytest.raises(ValueError, match="block 1 is not held"):
        BlockAllocator(3).keep(1)


def test_random_use_agrees_with_a_dictionary_of_counts() -> None:
    random = np.random.default_rng(0)
    allocator, counts = BlockAllocator(20), dict.fromkeys(range(1, 20), 0)
    for _ in range(2000):
        held = [block for block, count in counts.items() if count]
        action = random.integers(3)
        if action == 0 and len(held) < 19:
            for block in allocator.allocate(int(random.integers(0, 20 - len(held)))).tolist():
                assert counts[block] == 0
                counts[block] = 1
        elif held:
            some = random.choice(held, random.integers(1, len(held) + 1), replace=False)
            if action == 1:
                allocator.share(some.astype(np.int32))
            else:
                allocator.release(some.astype(np.int32))
            for block in some.tolist():
                counts[block] += 1 if action == 1 else -1
        assert allocator.num_free == sum(count == 0 for count in counts.values())
        assert allocator.references[1:].tolist() == list(counts.values())
