"""The prefix cache's invariants: what is shared was written, and is not written again."""

from __future__ import annotations

import numpy as np

from scheduler.core.audit_error import fail
from scheduler.core.ledger import Ledger
from scheduler.core.prefix_cache import ROOT
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


def _some(ledger: Ledger) -> list[int]:
    """Known blocks."""
    by_block = ledger.sharing.cache.by_block
    blocks = _in_turn(ledger, len(by_block), BLOCKS_AT_A_TIME).tolist()
    return [block for block in blocks if by_block[block] != ROOT]


def _check_known(ledger: Ledger) -> None:
    rule = "a kept block is that of one known prefix"
    cache, kept = ledger.sharing.cache, ledger.allocator.kept
    sizes = {len(cache.blocks), len(cache._prefixes), int(kept.sum())}
    if len(sizes) > 1:
        fail(rule, f"{kept.sum()} are kept, {len(cache.blocks)} have a prefix")
    for block in _in_turn(ledger, len(cache.by_block), BLOCKS_AT_A_TIME).tolist():
        prefix = cache.by_block[block]
        if (prefix != ROOT) is not bool(kept[block]):
            fail(rule, f"block {block} is kept: {bool(kept[block])}, known: {prefix != ROOT}")
        if prefix == ROOT:
            continue
        if cache.blocks[prefix] != block or cache._prefixes.get(cache._keys[block]) != prefix:
            fail(rule, f"the prefix of block {block} cannot be found")
        if (before := cache.before(block)) != ROOT and before not in cache.blocks:
            fail(rule, f"what the prefix of block {block} begins with is not known")


def _check_holders(ledger: Ledger) -> None:
    rule = "whoever holds a prefix's block holds those before it"
    references, cache = ledger.allocator.references, ledger.sharing.cache
    for block in _some(ledger):
        if (prefix := cache.before(block)) != ROOT:
            before = cache.blocks[prefix]
            if references[block] > references[before]:
                fail(rule, f"block {block} has more holders than {before} before it")


def _check_order(ledger: Ledger) -> None:
    rule = "a cached block is taken before those that its prefix begins with"
    cache, cached = ledger.sharing.cache, ledger.allocator.cached_blocks
    place = np.full(ledger.allocator.num_blocks, len(cached))  # of others: after all of them
    place[cached] = np.arange(len(cached))
    for block in _some(ledger):
        if (prefix := cache.before(block)) != ROOT:
            before = cache.blocks[prefix]
            if place[block] > place[before]:
                fail(rule, f"block {before} is taken before {block}, which begins with it")


def _check_chains(ledger: Ledger) -> None:
    rule = "a row shares what has its own tokens, and only that"
    sharing, tables, size = ledger.sharing, ledger.tables, ledger.tables.block_size
    cache, allocator = sharing.cache, ledger.allocator
    for row in np.flatnonzero(ledger.rows.live).tolist():
        table, count = tables.table(row), int(sharing.published[row])
        for index in _in_turn(ledger, count, BLOCKS_OF_A_ROW).tolist():
            prefix = cache.by_block[table[index]]
            if prefix == ROOT:
                continue  # it was withdrawn, and so were those behind it
            before = cache.by_block[table[index - 1]] if index else ROOT
            tokens = ledger.rows.tokens[row, index * size : (index + 1) * size].tobytes()
            if cache.longer(before, tokens) != prefix:
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
        to_write = step.slots[len(step.answers) :]
        blocks = np.unique(to_write // ledger.tables.block_size)
        wrong = blocks[allocator.kept[blocks] | (allocator.references[blocks] > 1)]
        if len(wrong):
            fail(rule, f"step {step.step_id} writes to {wrong.tolist()}")
