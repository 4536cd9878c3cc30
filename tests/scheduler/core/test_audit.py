"""Each rule of the audit is seen to fire: one corrupted thing per test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.core.audit import check
from scheduler.core.audit_error import AuditError
from scheduler.core.front_end import FinishReason
from scheduler.core.hold import Hold
from scheduler.core.ledger import Ledger
from scheduler.core.request import Verdict
from scheduler.core.static_batching import StaticBatching
from scheduler.core.window import Window
from tests.scheduler.core.fake_worker import FakeWorker
from tests.scheduler.core.harness import Harness


def busy() -> tuple[Ledger, Window]:
    """Two running requests with steps in flight, two waiting."""
    harness = Harness(FakeWorker(max_rows=2), pipeline_depth=3)
    for i in range(4):
        harness.submit([i] * 6, 20)
    harness.turn()
    assert harness.engine.worker is not None
    return harness.books, harness.engine.worker.window


def scratch_is_free(ledger: Ledger, window: Window) -> None:
    ledger.allocator._free[0] = 0


def a_block_is_free_twice(ledger: Ledger, window: Window) -> None:
    ledger.allocator._free[0] = ledger.allocator._free[1]


def a_block_is_lost(ledger: Ledger, window: Window) -> None:
    ledger.allocator._num_free -= 1


def a_held_block_is_free(ledger: Ledger, window: Window) -> None:
    ledger.allocator._free[0] = ledger.tables.table(0)[0]


def a_reference_too_many(ledger: Ledger, window: Window) -> None:
    ledger.allocator.references[ledger.tables.table(0)[0]] = 2


def two_tables_list_a_block(ledger: Ledger, window: Window) -> None:
    ledger.tables.blocks[0, 0] = ledger.tables.blocks[1, 0]


def a_table_lists_scratch(ledger: Ledger, window: Window) -> None:
    ledger.tables.blocks[0, 0] = 0


def a_table_is_too_long(ledger: Ledger, window: Window) -> None:
    ledger.tables.grow(np.array([0]), np.array([40]))


def a_dead_row_holds_blocks(ledger: Ledger, window: Window) -> None:
    request = ledger.rows.drop(0)
    ledger.waiting.appendleft(request)


def a_request_thinks_it_has_another_row(ledger: Ledger, window: Window) -> None:
    ledger.rows.request[0].row = 1


def a_live_row_has_no_request(ledger: Ledger, window: Window) -> None:
    ledger.rows.request[0] = None


def a_row_is_lost(ledger: Ledger, window: Window) -> None:
    ledger.rows._free.append(0)


def an_ended_request_runs(ledger: Ledger, window: Window) -> None:
    ledger.rows.request[0].ended = True


def a_running_request_waits(ledger: Ledger, window: Window) -> None:
    ledger.waiting.append(ledger.rows.request[0])


def a_request_is_in_no_place(ledger: Ledger, window: Window) -> None:
    ledger.waiting.pop()


def the_waiting_are_out_of_order(ledger: Ledger, window: Window) -> None:
    ledger.waiting.rotate()


def an_id_is_forgotten(ledger: Ledger, window: Window) -> None:
    del ledger.by_id["r1"]


def more_computed_than_known(ledger: Ledger, window: Window) -> None:
    row = 0
    ledger.rows.known[row] = ledger.rows.computed[row]


def more_known_than_the_limit(ledger: Ledger, window: Window) -> None:
    ledger.rows.limit[0] = ledger.rows.known[0] - 1


def a_token_in_flight_is_forgotten(ledger: Ledger, window: Window) -> None:
    ledger.rows.accepted[0] += 1


def a_step_is_lost(ledger: Ledger, window: Window) -> None:
    window.steps.pop()


def a_waiting_request_expects_a_token(ledger: Ledger, window: Window) -> None:
    ledger.waiting[0].unanswered = 1


def too_many_steps(ledger: Ledger, window: Window) -> None:
    window.depth = 2


RULES = {
    "the free list holds": [
        scratch_is_free,
        a_block_is_free_twice,
        a_block_is_lost,
        a_held_block_is_free,
    ],
    "a block's references are": [
        a_reference_too_many,
        two_tables_list_a_block,
        a_table_lists_scratch,
    ],
    "a table holds the blocks": [a_table_is_too_long, a_dead_row_holds_blocks],
    "a row has at most one request": [
        a_live_row_has_no_request,
        a_row_is_lost,
        a_request_thinks_it_has_another_row,
        an_ended_request_runs,
    ],
    "a request waits, in order": [
        a_running_request_waits,
        a_request_is_in_no_place,
        the_waiting_are_out_of_order,
        an_id_is_forgotten,
    ],
    "prompt <= accepted <= known": [more_computed_than_known, more_known_than_the_limit],
    "a token that is known": [
        a_token_in_flight_is_forgotten,
        a_step_is_lost,
        a_waiting_request_expects_a_token,
        too_many_steps,
    ],
}


def static(return_together: bool = False) -> tuple[Ledger, Window]:
    """A batch of a row that runs and one that is held, both in steps in flight."""
    policy = StaticBatching(return_together=return_together)
    harness = Harness(FakeWorker(), policy=policy, pipeline_depth=3)
    harness.submit([1] * 6, 20)
    harness.submit([2] * 6, 2)
    for _ in range(5):
        harness.step()
    assert harness.books.rows.held.tolist()[:2] == [False, True]
    assert harness.engine.worker is not None
    return harness.books, harness.engine.worker.window


def with_its_batch() -> tuple[Ledger, Window]:
    return static(return_together=True)


def a_reservation_is_forgotten(ledger: Ledger, window: Window) -> None:
    ledger.rows.reserved[0] = 0


def a_reservation_passes_the_limit(ledger: Ledger, window: Window) -> None:
    ledger.rows.reserved[0] += 1


def a_held_row_is_let_go(ledger: Ledger, window: Window) -> None:
    ledger.rows.held[1] = False


def a_running_row_is_held(ledger: Ledger, window: Window) -> None:
    ledger.rows.held[0] = True


def the_policy_holds_nothing(ledger: Ledger, window: Window) -> None:
    ledger.hold = Hold.NOTHING


def a_held_row_is_not_live(ledger: Ledger, window: Window) -> None:
    ledger.rows.held[5] = True


def nobody_runs(ledger: Ledger, window: Window) -> None:
    ledger.end(ledger.rows.request[0])


def an_end_held_back_is_forgotten(ledger: Ledger, window: Window) -> None:
    ledger.rows.request[1].verdict = None


def a_running_request_has_a_verdict(ledger: Ledger, window: Window) -> None:
    ledger.rows.request[0].verdict = Verdict(FinishReason.LENGTH)


def a_held_request_has_ended(ledger: Ledger, window: Window) -> None:
    ledger.end(ledger.rows.request[1], keep_row=True)


def a_row_short_of_its_limit_is_rewritten(ledger: Ledger, window: Window) -> None:
    window.steps[-1].rewrites[:] = True


def a_rewrite_counts_as_a_token(ledger: Ledger, window: Window) -> None:
    window.steps[-1].rewrites[:] = False


HELD_RULES = {
    static: {
        "a table holds the blocks": [a_reservation_is_forgotten, a_reservation_passes_the_limit],
        "a row has at most one request": [a_held_row_is_let_go],
        "a row is held from": [
            a_running_row_is_held,
            the_policy_holds_nothing,
            a_held_row_is_not_live,
            nobody_runs,
        ],
        "a token that is known": [
            a_row_short_of_its_limit_is_rewritten,
            a_rewrite_counts_as_a_token,
        ],
    },
    with_its_batch: {
        "a row is held from": [
            an_end_held_back_is_forgotten,
            a_running_request_has_a_verdict,
            a_held_request_has_ended,
            a_held_row_is_let_go,
        ],
    },
}


@pytest.mark.parametrize("books", [busy, static, with_its_batch])
def test_books_in_order_pass(books: Callable[[], tuple[Ledger, Window]]) -> None:
    check(*books())


@pytest.mark.parametrize(
    ("rule", "corrupt"), [(rule, corrupt) for rule, some in RULES.items() for corrupt in some]
)
def test_the_rule_fires(rule: str, corrupt: Callable[[Ledger, Window], None]) -> None:
    ledger, window = busy()
    corrupt(ledger, window)
    with pytest.raises(AuditError, match=rule):
        check(ledger, window)


@pytest.mark.parametrize(
    ("books", "rule", "corrupt"),
    [
        (books, rule, corrupt)
        for books, rules in HELD_RULES.items()
        for rule, some in rules.items()
        for corrupt in some
    ],
)
def test_the_rule_fires_in_a_static_batch(
    books: Callable[[], tuple[Ledger, Window]],
    rule: str,
    corrupt: Callable[[Ledger, Window], None],
) -> None:
    ledger, window = books()
    corrupt(ledger, window)
    with pytest.raises(AuditError, match=rule):
        check(ledger, window)
