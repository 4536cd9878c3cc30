"""Each rule of the prefix cache's audit is seen to fire: one corrupted thing per test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.core.audit import check
from scheduler.core.audit_error import AuditError
from scheduler.core.audit_prefixes import BLOCKS_AT_A_TIME, _check_known
from scheduler.core.ledger import Ledger
from scheduler.core.prefix_cache import Prefix
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


def prefix_of(ledger: Ledger, row: int, index: int) -> Prefix:
    prefix = ledger.sharing.cache.by_block[ledger.tables.table(row)[index]]
    assert prefix is not None
    return prefix


def last_cached(ledger: Ledger) -> Prefix:
    """The one that the others build on."""
    prefix = ledger.sharing.cache.by_block[ledger.allocator.cached_blocks[-1]]
    assert prefix is not None
    return prefix


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


def a_prefix_is_forgotten_by_its_parent(ledger: Ledger, window: Window) -> None:
    del last_cached(ledger).parent.children[last_cached(ledger).tokens]


def a_prefix_names_anothers_block(ledger: Ledger, window: Window) -> None:
    last_cached(ledger).block = prefix_of(ledger, 0, 0).block


def a_block_is_held_behind_one_that_nobody_holds(ledger: Ledger, window: Window) -> None:
    prefix = prefix_of(ledger, 0, 1)
    ledger.sharing.cache._cut(prefix)
    prefix.parent = last_cached(ledger)
    prefix.parent.children[prefix.tokens] = prefix


def a_beginning_is_taken_before_its_end(ledger: Ledger, window: Window) -> None:
    ledger.allocator.touch(int(ledger.allocator.cached_blocks[0]))


def a_published_token_changes(ledger: Ledger, window: Window) -> None:
    ledger.rows.tokens[1, 5] += 1


def a_prefix_claims_other_tokens(ledger: Ledger, window: Window) -> None:
    prefix = prefix_of(ledger, 0, 0)
    ledger.sharing.cache._cut(prefix)
    prefix.tokens = np.array([1, 1, 1, 1], np.int32).tobytes()
    ledger.sharing.cache.root.children[prefix.tokens] = prefix


def a_row_shares_the_end_without_the_beginning(ledger: Ledger, window: Window) -> None:
    prefix = prefix_of(ledger, 0, 1)
    ledger.sharing.cache._cut(prefix)
    prefix.parent = ledger.sharing.cache.root
    prefix.parent.children[prefix.tokens] = prefix


def a_row_may_write_to_a_block_that_it_shares(ledger: Ledger, window: Window) -> None:
    ledger.sharing.published[1] = 1


def a_block_is_published_before_it_is_written(ledger: Ledger, window: Window) -> None:
    row = 0
    count = int(ledger.sharing.published[row])
    block = int(ledger.tables.table(row)[count])
    start = 4 * count
    tokens = ledger.rows.tokens[row, start : start + 4].tobytes()
    ledger.sharing.cache.add(prefix_of(ledger, row, count - 1), tokens, block)
    ledger.sharing.published[row] += 1


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
        a_prefix_is_forgotten_by_its_parent,
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
    ledger, _window = sharing()
    cache, allocator = ledger.sharing.cache, ledger.allocator
    spare = 1000 - allocator.num_blocks
    cache.by_block += [None] * spare
    allocator.kept = np.append(allocator.kept, np.zeros(spare, bool))
    allocator.kept[900] = True
    caught = 0
    for _ in range(16):
        ledger.totals.steps += 1
        try:
            _check_known(ledger)
        except AuditError:
            caught += 1
    assert caught == 16 * BLOCKS_AT_A_TIME // 1000


@pytest.mark.parametrize(
    ("rule", "corrupt"), [(rule, corrupt) for rule, some in RULES.items() for corrupt in some]
)
def test_the_rule_fires(rule: str, corrupt: Callable[[Ledger, Window], None]) -> None:
    ledger, window = sharing()
    corrupt(ledger, window)
    with pytest.raises(AuditError, match=rule):
        check(ledger, window)
