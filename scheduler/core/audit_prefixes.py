"""The prefix cache's invariants: what is shared was written, and is not written again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scheduler.core.audit_error import fail
from scheduler.core.ledger import Ledger
from scheduler.core.prefix_cache import Prefix
from scheduler.core.window import Window

# What has to be looked at one by one: so many at a time, those of a larger pool or table in
# turn, so that an audit of a large one costs little more than that of a small one.
BLOCKS_AT_A_TIME = 256
BLOCKS_OF_A_ROW = 16


def check_prefixes(ledger: Ledger, window: Window) -> None:
    """Raises AuditError at the first rule that does not hold. Of no use before the free list
    and the references are known to be right."""
    _check_known(ledger)
    _check_holders(ledger)
    _check_order(ledger)
    _check_chains(ledger)
    _check_published(ledger)
    _check_writes(ledger, window)


def _in_turn(ledger: Ledger, count: int, most: int) -> np.ndarray:
    """`most` of the indices below `count`, others after each step."""
    start = ledger.totals.steps * most if count > most else 0
    return np.arange(start, start + min(count, most)) % max(1, count)


def _some(ledger: Ledger) -> Iterator[Prefix]:
    by_block = ledger.sharing.cache.by_block
    for block in _in_turn(ledger, len(by_block), BLOCKS_AT_A_TIME).tolist():
        if (prefix := by_block[block]) is not None:
            yield prefix


def _check_known(ledger: Ledger) -> None:
    rule = "a kept block is that of one known prefix"
    cache, kept = ledger.sharing.cache, ledger.allocator.kept
    for block in _in_turn(ledger, len(cache.by_block), BLOCKS_AT_A_TIME).tolist():
        prefix = cache.by_block[block]
        if (prefix is not None) is not bool(kept[block]):
            fail(rule, f"block {block} is kept: {bool(kept[block])}, known: {prefix is not None}")
        if prefix is None:
            continue
        before = prefix.parent
        if prefix.block != block or before is None or before.children.get(prefix.tokens) != prefix:
            fail(rule, f"the prefix of block {block} cannot be found")
        _check_children(rule, ledger, prefix)
    _check_children(rule, ledger, cache.root)


def _check_children(rule: str, ledger: Ledger, prefix: Prefix) -> None:
    by_block = ledger.sharing.cache.by_block
    for child in prefix.children.values():
        if by_block[child.block] is not child or child.parent is not prefix:
            fail(rule, f"block {child.block} is another's, or behind another")


def _check_holders(ledger: Ledger) -> None:
    rule = "whoever holds a prefix's block holds those before it"
    references, root = ledger.allocator.references, ledger.sharing.cache.root
    for prefix in _some(ledger):
        before = prefix.parent
        if before not in (None, root) and references[prefix.block] > references[before.block]:
            fail(rule, f"block {prefix.block} has more holders than {before.block} before it")


def _check_order(ledger: Ledger) -> None:
    rule = "a cached block is taken before those that its prefix begins with"
    cached = ledger.allocator.cached_blocks
    place = np.full(ledger.allocator.num_blocks, len(cached))  # of others: after all of them
    place[cached] = np.arange(len(cached))
    for prefix in _some(ledger):
        late = [c.block for c in prefix.children.values() if place[c.block] > place[prefix.block]]
        if late:
            fail(rule, f"block {prefix.block} goes before {late}, which begin with it")


def _check_chains(ledger: Ledger) -> None:
    rule = "a row shares what has its own tokens, and only that"
    sharing, tables, size = ledger.sharing, ledger.tables, ledger.tables.block_size
    by_block, allocator = sharing.cache.by_block, ledger.allocator
    for row in np.flatnonzero(ledger.rows.live).tolist():
        table, count = tables.table(row), int(sharing.published[row])
        for index in _in_turn(ledger, count, BLOCKS_OF_A_ROW).tolist():
            prefix = by_block[table[index]]
            if prefix is None:
                continue  # it was withdrawn, and so were those behind it
            before = by_block[table[index - 1]] if index else sharing.cache.root
            tokens = ledger.rows.tokens[row, index * size : (index + 1) * size].tobytes()
            if prefix.parent is not before or prefix.tokens != tokens:
                fail(rule, f"block {table[index]} of row {row} has other tokens than its own")
        own = table[count:]
        wrong = own[allocator.kept[own] | (allocator.references[own] > 1)]
        if len(wrong):
            fail(rule, f"row {row} may still write to blocks {wrong.tolist()}, which others know")


def _check_published(ledger: Ledger) -> None:
    rule = "what is published was written and accepted"
    rows, sharing = ledger.rows, ledger.sharing
    if not sharing.enabled:
        return
    published = sharing.published * ledger.tables.block_size
    accepted = rows.accepted.copy()
    for row in np.flatnonzero(rows.held).tolist():  # what else it has is nobody's
        accepted[row] = len(rows.request[row].tokens)
    ordered = (
        (published <= rows.written) & (rows.written <= rows.computed) & (rows.written <= accepted)
    )
    wrong = np.flatnonzero(rows.live & ~ordered)
    if len(wrong):
        row = int(wrong[0])
        fail(
            rule,
            f"of row {row} {published[row]} tokens are published, {rows.written[row]} written, "
            f"{accepted[row]} accepted, {rows.computed[row]} written or in flight",
        )


def _check_writes(ledger: Ledger, window: Window) -> None:
    rule = "no step in flight writes to a block that is published or shared"
    allocator = ledger.allocator
    for step in window.steps:
        blocks = np.unique(step.slots // ledger.tables.block_size)
        wrong = blocks[allocator.kept[blocks] | (allocator.references[blocks] > 1)]
        if len(wrong):
            fail(rule, f"step {step.step_id} writes to {wrong.tolist()}")
