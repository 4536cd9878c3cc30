"""The books' invariants as code: after every turn in tests, and with --audit."""

from __future__ import annotations

import numpy as np

from scheduler.core.audit_error import fail
from scheduler.core.audit_prefixes import check_prefixes
from scheduler.core.block_allocator import SCRATCH_BLOCK
from scheduler.core.hold import Hold
from scheduler.core.ledger import Ledger
from scheduler.core.request import NO_ROW
from scheduler.core.rows import Rows
from scheduler.core.window import Window


def check(ledger: Ledger, window: Window) -> None:
    """Raises AuditError at the first rule that does not hold."""
    _check_free_list(ledger)
    _check_references(ledger)
    _check_tables(ledger)
    _check_rows(ledger)
    _check_waiting(ledger)
    _check_counts(ledger)
    _check_held(ledger)
    _check_in_flight(ledger, window)
    check_prefixes(ledger, window)


def _check_free_list(ledger: Ledger) -> None:
    rule = "the free list holds each free block once, and never the scratch block"
    # The cached ones are free too, and in a list of their own.
    free = np.concatenate([ledger.allocator.free_blocks, ledger.allocator.cached_blocks])
    free.sort()
    if np.count_nonzero(free == SCRATCH_BLOCK):
        fail(rule, "the scratch block is in it")
    if np.count_nonzero(free[1:] == free[:-1]):
        fail(rule, "a block is in it twice")
    unreferenced = ledger.allocator.references == 0
    unreferenced[SCRATCH_BLOCK] = False
    expected = unreferenced.nonzero()[0]
    if len(free) != len(expected) or np.count_nonzero(free != expected):
        blocks = np.setxor1d(free, expected)
        fail(rule, f"blocks {blocks.tolist()} are lost, or free and held at once")


def _check_references(ledger: Ledger) -> None:
    rule = "a block's references are the tables that list it"
    tables = ledger.tables
    listed = np.arange(tables.blocks.shape[1]) < tables.num_blocks[:, None]
    counts = np.bincount(tables.blocks[listed], minlength=ledger.allocator.num_blocks)
    if counts[SCRATCH_BLOCK]:
        fail(rule, "a table lists the scratch block")
    wrong = (counts != ledger.allocator.references).nonzero()[0]
    if len(wrong):
        block = int(wrong[0])
        references = int(ledger.allocator.references[block])
        fail(rule, f"block {block} has {references}, and {int(counts[block])} tables list it")


def _check_tables(ledger: Ledger) -> None:
    rule = "a table holds the blocks of its row's tokens in the pool or in flight, or reserved"
    rows, tables = ledger.rows, ledger.tables
    tokens = np.maximum(rows.computed, rows.reserved)
    needed = rows.live * -(-tokens // tables.block_size)
    wrong = (needed != tables.num_blocks).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        held = int(tables.num_blocks[row])
        fail(rule, f"row {row} needs {int(needed[row])} and holds {held}")
    reserves = rows.live & (rows.reserved != 0)
    wrong = (reserves & (rows.reserved != rows.limit - 1)).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        reserved, limit = int(rows.reserved[row]), int(rows.limit[row])
        fail(rule, f"row {row} reserved {reserved} tokens, and its limit is {limit}")


def _check_rows(ledger: Ledger) -> None:
    rule = "a row has at most one request, and a request at most one row"
    rows = ledger.rows
    live = rows.live.nonzero()[0]
    for row, request in zip(live.tolist(), rows.request[live], strict=True):
        if request is None or request.row != row:
            fail(rule, f"row {row} is live, and its request says otherwise")
        if request.ended and not rows.held[row]:
            fail(rule, f"row {row} belongs to {request.request_id}, which has ended")
    owned = [r.row for r in ledger.by_handle.values() if r.row != NO_ROW]
    owned += _outliving(rows)
    if sorted(owned) != live.tolist():
        fail(rule, f"requests have rows {sorted(owned)}, others are live")
    if rows.num_live != len(live):
        fail(rule, f"{rows.num_live} rows are taken and {len(live)} are live")


def _check_waiting(ledger: Ledger) -> None:
    rule = "a request waits, in order of arrival and without a row, or runs"
    waiting = list(ledger.waiting)
    for request in waiting:
        if request.ended or request.row != NO_ROW:
            fail(rule, f"{request.request_id} waits, and runs or has ended")
    orders = [request.order for request in waiting]
    if orders != sorted(set(orders)):
        fail(rule, f"the waiting came in order {orders}")
    running = ledger.rows.num_live - len(_outliving(ledger.rows))
    if len(waiting) + running != ledger.num_requests:
        fail(
            rule,
            f"{ledger.num_requests} requests, but {len(waiting)} wait and {running} run",
        )
    if set(ledger.by_id.values()) != set(ledger.by_handle.values()):
        fail(rule, "ids and handles name different requests")


def _check_counts(ledger: Ledger) -> None:
    rule = "prompt <= accepted <= known <= limit, and computed < known"
    rows = ledger.rows
    ordered = (
        (rows.prompt_len <= rows.accepted)
        & (rows.accepted <= rows.known)
        & (rows.known <= rows.limit)
        & (rows.computed < rows.known)
    )
    wrong = (rows.live & ~ordered).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        fail(
            rule,
            f"row {row} has prompt {rows.prompt_len[row]}, accepted {rows.accepted[row]}, known "
            f"{rows.known[row]}, limit {rows.limit[row]}, computed {rows.computed[row]}",
        )


def _check_held(ledger: Ledger) -> None:
    rule = "a row is held from its request's last token until no other row runs"
    rows = ledger.rows
    held = rows.held.nonzero()[0].tolist()
    for row in held:
        request = rows.request[row]
        if not rows.live[row] or ledger.hold is Hold.NOTHING:
            fail(rule, f"row {row} is held, and is not live or the policy holds nothing")
        if request.ended is not (ledger.hold is Hold.ROW):
            fail(rule, f"row {row} is held for {ledger.hold.value}, ended: {request.ended}")
        if not request.ended and request.verdict is None:
            fail(rule, f"row {row} is held, and how {request.request_id} ended is not known")
    for request in ledger.by_handle.values():
        if request.verdict is not None and (request.row == NO_ROW or not rows.held[request.row]):
            fail(rule, f"{request.request_id} has its last token, and its row is not held")
    if held and not (rows.live & ~rows.held).any():
        fail(rule, f"rows {held} are, and nobody runs")


def _outliving(rows: Rows) -> list[int]:
    """Held rows whose requests have ended."""
    held = (rows.live & rows.held).nonzero()[0]
    return [row for row in held.tolist() if rows.request[row].ended]


def _check_in_flight(ledger: Ledger, window: Window) -> None:
    rule = "a token that is known and not accepted is in flight, once"
    rows = ledger.rows
    in_flight = np.zeros(rows.max_rows, np.int64)
    late: dict[int, int] = {}
    for step in window.steps:
        current = rows.generation[step.rows] == step.generations
        again = step.rows[current & step.rewrites]
        if len(again) and (rows.known[again] < rows.limit[again]).any():
            fail(rule, f"step {step.step_id} rewrites a row that has not reached its limit")
        sampling = step.rows[current & ~step.rewrites]
        in_flight += step.unanswered * np.bincount(sampling, minlength=rows.max_rows)
        for request in step.requests[~current]:
            late[request.handle] = late.get(request.handle, 0) + step.unanswered
    wrong = (rows.live & (rows.known - rows.accepted != in_flight)).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        missing = int(rows.known[row] - rows.accepted[row])
        fail(rule, f"row {row} lacks {missing} tokens, and {int(in_flight[row])} are in flight")
    for request in ledger.waiting:
        if request.unanswered != late.get(request.handle, 0):
            fail(
                rule,
                f"{request.request_id} waits for {request.unanswered} tokens, and "
                f"{late.get(request.handle, 0)} are in flight",
            )
    if len(window) > window.depth:
        fail(rule, f"{len(window)} steps are in flight, and the depth is {window.depth}")
