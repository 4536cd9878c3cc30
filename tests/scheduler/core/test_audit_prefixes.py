"""Each rule of the prefix cache's audit is seen to fire: one corrupted thing per test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.core.audit import check
from scheduler.core.audit_error import AuditError
from scheduler.core.audit_prefixes import BLOCKS_AT_A_TIME, _check_known
from scheduler.core.ledger import Ledger
from scheduler.core.prefix_cache import ROOT, _key
from scheduler.core.window import Window
from tests.scheduler.core.fake_worker import FakeWorker
from tests.scheduler.core.harness import Harness

PROMPT = [*range(10)]


def sharing() -> tuple[Ledger, Window]:
    """Rows 0 and 1 share two blocks, and are in steps in flight; three blocks of one that is
    gone are cached."""
    harness = Harness(FakeWorker(max_rows=2), pipeline_depth=2)
    harness.submit([50] * 13, 1)
    harness.run()
    harness.submit(PROMPT, 40)
    for _ in range(3):
        harness.step()
    harness.submit([*PROMPT, 7], 40)
    for _ in range(4):
        harness.step()
    books = harness.books
    shared = books.tables.table(0)[:2]
    assert books.tables.table(1)[:2].tolist() == shared.tolist()
    assert books.allocator.references[shared].tolist() == [2, 2]
    assert books.allocator.num_cached == 3
    assert books.sharing.published[:2].min() >= 2
    assert harness.engine.worker is not None
    assert len(harness.engine.worker.window) == 2
    return books, harness.engine.worker.window


def other_key(ledger: Ledger, block: int, before: int, tokens: bytes) -> None:
    """The prefix that ends with `block` is another one from here on."""
    cache = ledger.sharing.cache
    del cache._prefixes[cache._keys[block]]
    cache._keys[block] = _key(before, tokens)
    cache._prefixes[cache._keys[block]] = cache.by_block[block]


def a_cached_block_is_lost(ledger: Ledger, window: Window) -> None:
    ledger.allocator._cached.popitem()


def a_cached_block_is_free_as_well(ledger: Ledger, window: Window) -> None:
    ledger.allocator._put(int(ledger.allocator.cached_blocks[0]))


def a_held_block_is_cached(ledger: Ledger, window: Window) -> None:
    ledger.allocator._cached[int(ledger.tables.table(0)[0])] = None


def a_shared_block_has_one_reference(ledger: Ledger, window: Window) -> None:
    ledger.allocator.references[ledger.tables.table(0)[0]] = 1


def a_cached_block_is_not_kept(ledger: Ledger, window: Window) -> None:
    ledger.allocator.kept[ledger.allocator.cached_blocks[0]] = False


def a_block_that_nobody_knows_is_kept(ledger: Ledger, window: Window) -> None:
    ledger.allocator.kept[ledger.tables.table(0)[-1]] = True


def a_prefix_cannot_be_looked_up(ledger: Ledger, window: Window) -> None:
    cache = ledger.sharing.cache
    cache._keys[int(ledger.allocator.cached_blocks[0])] = b"12345678"


def a_prefix_is_forgotten_and_its_block_is_not(ledger: Ledger, window: Window) -> None:
    cache = ledger.sharing.cache
    del cache._prefixes[cache._keys[int(ledger.allocator.cached_blocks[0])]]


def a_prefix_names_anothers_block(ledger: Ledger, window: Window) -> None:
    cache = ledger.sharing.cache
    cache.blocks[cache.by_block[int(ledger.allocator.cached_blocks[0])]] = 1


def a_prefix_begins_with_one_that_is_gone(ledger: Ledger, window: Window) -> None:
    other_key(ledger, int(ledger.allocator.cached_blocks[0]), 999, b"1234")


def a_block_is_held_behind_one_that_nobody_holds(ledger: Ledger, window: Window) -> None:
    last = int(ledger.allocator.cached_blocks[0])
    other_key(ledger, int(ledger.tables.table(0)[1]), ledger.sharing.cache.by_block[last], b"1234")


def a_beginning_is_taken_before_its_end(ledger: Ledger, window: Window) -> None:
    ledger.allocator.touch(int(ledger.allocator.cached_blocks[0]))


def a_published_token_changes(ledger: Ledger, window: Window) -> None:
    ledger.rows.tokens[1, 5] += 1


def a_prefix_claims_other_tokens(ledger: Ledger, window: Window) -> None:
    other_key(ledger, int(ledger.tables.table(0)[0]), ROOT, bytes(16))


def a_row_shares_the_end_without_the_beginning(ledger: Ledger, window: Window) -> None:
    tokens = ledger.rows.tokens[0, 4:8].tobytes()
    other_key(ledger, int(ledger.tables.table(0)[1]), ROOT, tokens)


def a_row_may_write_to_a_block_that_it_shares(ledger: Ledger, window: Window) -> None:
    ledger.sharing.published[1] = 1


def a_block_is_published_before_it_is_written(ledger: Ledger, window: Window) -> None:
    sharing, count = ledger.sharing, int(ledger.sharing.published[0])
    tokens = ledger.rows.tokens[0, 4 * count : 4 * count + 4].tobytes()
    before = sharing.cache.by_block[ledger.tables.table(0)[count - 1]]
    assert sharing.cache.add(before, [int(ledger.tables.table(0)[count])], [tokens]) == 1
    sharing.published[0] += 1


def more_is_written_than_was_sent(ledger: Ledger, window: Window) -> None:
    ledger.rows.written[0] = ledger.rows.computed[0] + 1


def a_token_is_written_that_nobody_accepted(ledger: Ledger, window: Window) -> None:
    ledger.rows.written[0] = ledger.rows.accepted[0] + 1


def a_step_writes_to_a_shared_block(ledger: Ledger, window: Window) -> None:
    window.steps[-1].slots[0] = ledger.tables.table(0)[0] * 4


def a_step_writes_to_a_cached_block(ledger: Ledger, window: Window) -> None:
    window.steps[-1].slots[0] = ledger.allocator.cached_blocks[0] * 4


RULES = {
    "the free list holds": [
        a_cached_block_is_lost,
        a_cached_block_is_free_as_well,
        a_held_block_is_cached,
    ],
    "a block's references are": [a_shared_block_has_one_reference],
    "a kept block is that of one": [
        a_cached_block_is_not_kept,
        a_block_that_nobody_knows_is_kept,
        a_prefix_cannot_be_looked_up,
        a_prefix_is_forgotten_and_its_block_is_not,
        a_prefix_begins_with_one_that_is_gone,
        a_prefix_names_anothers_block,
    ],
    "whoever holds a prefix's block": [a_block_is_held_behind_one_that_nobody_holds],
    "a cached block is taken before": [a_beginning_is_taken_before_its_end],
    "a row shares what has its own": [
        a_published_token_changes,
        a_prefix_claims_other_tokens,
        a_row_shares_the_end_without_the_beginning,
        a_row_may_write_to_a_block_that_it_shares,
    ],
    "what is published was written": [
        a_block_is_published_before_it_is_written,
        more_is_written_than_was_sent,
        a_token_is_written_that_nobody_accepted,
    ],
    "no step in flight writes": [a_step_writes_to_a_shared_block, a_step_writes_to_a_cached_block],
}


def test_books_in_order_pass() -> None:
    check(*sharing())


def test_of_a_large_pool_every_block_has_its_turn() -> None:
    ledger, _ = sharing()
    cache, allocator = ledger.sharing.cache, ledger.allocator
    cache.by_block += [ROOT] * (1000 - allocator.num_blocks)
    cache._keys += [b""] * (1000 - allocator.num_blocks)
    allocator.kept = np.append(allocator.kept, np.zeros(1000 - allocator.num_blocks, bool))
    last = int(allocator.cached_blocks[-1])
    allocator.kept[[last, 900]] = False, True
    caught = 0
    for _ in range(1000):
        ledger.totals.steps += 1
        try:
            _check_known(ledger)
        except AuditError:
            caught += 1
    assert BLOCKS_AT_A_TIME == 256
    assert 256 <= caught <= 2 * 256


@pytest.mark.parametrize(
    ("rule", "corrupt"), [(rule, corrupt) for rule, some in RULES.items() for corrupt in some]
)
def test_the_rule_fires(rule: str, corrupt: Callable[[Ledger, Window], None]) -> None:
    ledger, window = sharing()
    corrupt(ledger, window)
    with pytest.raises(AuditError, match=rule):
        check(ledger, window)
