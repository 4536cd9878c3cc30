import numpy as np
import pytest

from scheduler.core.block_allocator import BlockAllocator, OutOfBlocks
from scheduler.core.block_table import BlockTables


def tables(num_blocks: int = 10, block_size: int = 4, max_rows: int = 3) -> BlockTables:
    return BlockTables(BlockAllocator(num_blocks), block_size, max_rows, max_tokens=32)


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_table_grows_only_at_a_block_border() -> None:
    book = tables()
    counts = []
    for length in range(1, 10):
        counts.append(book.grow(array(0), array(length)).counts.tolist())
    assert counts == [[1], [], [], [], [1], [], [], [], [1]]
    assert book.num_blocks.tolist() == [3, 0, 0]


def test_slots_follow_the_table() -> None:
    book = tables()
    book.grow(array(0), array(1))
    book.grow(array(1, 0), array(6, 5))
    assert book.table(0).tolist() == [1, 4]
    assert book.table(1).tolist() == [2, 3]
    assert book.slots(array(1, 0), array(0, 4), array(6, 1)).tolist() == [8, 9, 10, 11, 12, 13, 16]


def test_a_row_of_length_2_occupies_2_slots_whoever_shares_its_step() -> None:
    book = tables(num_blocks=20)
    book.grow(array(0, 1, 2), array(2, 31, 17))
    assert len(book.slots(array(0), array(0), array(2))) == 2
    assert book.num_blocks.tolist() == [1, 8, 5]


def test_a_reservation_that_one_of_three_rows_cannot_have_moves_nothing() -> None:
    book = tables(num_blocks=7)
    book.grow(array(0, 1, 2), array(4, 4, 4))
    lines, counts = book.blocks.copy(), book.num_blocks.copy()
    free = book.allocator.free_blocks.tolist()
    with pytest.raises(OutOfBlocks):
        book.grow(array(0, 1, 2), array(5, 5, 12))
    assert np.array_equal(book.blocks, lines)
    assert np.array_equal(book.num_blocks, counts)
    assert book.allocator.free_blocks.tolist() == free


def test_a_released_row_holds_nothing_and_its_blocks_are_free() -> None:
    book = tables()
    book.grow(array(0, 1), array(9, 4))
    book.release(0)
    assert book.num_blocks.tolist() == [0, 1, 0]
    assert book.allocator.num_free == 8


def test_random_growth_agrees_with_plain_lists() -> None:
    random = np.random.default_rng(1)
    book = tables(num_blocks=60, block_size=3, max_rows=5)
    lengths, lists = [0] * 5, [[] for _ in range(5)]
    for _ in range(200):
        rows = random.permutation(5)[: random.integers(1, 6)]
        adds = random.integers(1, 8, len(rows))
        context = np.array([lengths[row] for row in rows]) + adds
        if (context > 30).any():
            row = int(rows[context.argmax()])
            book.release(row)
            lengths[row], lists[row] = 0, []
            continue
        appended = book.grow(rows, context)
        start = 0
        for row, count in zip(appended.rows, appended.counts, strict=True):
            lists[row] += appended.blocks[start : start + count].tolist()
            start += count
        slots = book.slots(rows, context - adds, adds).tolist()
        expected = [
            lists[row][position // 3] * 3 + position % 3
            for row, end, add in zip(rows, context, adds, strict=True)
            for position in range(end - add, end)
        ]
        assert slots == expected
        for row, end in zip(rows, context, strict=True):
            lengths[row] = int(end)
            assert book.table(row).tolist() == lists[row]
