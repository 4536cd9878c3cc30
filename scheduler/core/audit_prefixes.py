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
    blocks, before = _some(ledger)
    _check_holders(ledger, blocks, before)
    _check_order(ledger, blocks, before)
    final = ledger.allocator.kept | (ledger.allocator.references > 1)
    _check_chains(ledger, final)
    _check_published(ledger)
    _check_writes(ledger, window, final)


def _in_turn(ledger: Ledger, count: int, most: int) -> np.ndarray:
    """`most` of the indices below `count`, others after each step."""
    if count <= most:
        return np.arange(count)
    start = ledger.totals.steps * most
    return np.arange(start, start + most) % count


def _some(ledger: Ledger) -> tuple[np.ndarray, np.ndarray]:
    """Known blocks with one before them, and that one of each."""
    cache = ledger.sharing.cache
    blocks, before = [], []
    for block in _in_turn(ledger, len(cache.by_block), BLOCKS_AT_A_TIME).tolist():
        if cache.by_block[block] != ROOT and (prefix := cache.before(block)) != ROOT:
            blocks.append(block)
            before.append(cache.blocks[prefix])
    return np.array(blocks, np.int64), np.array(before, np.int64)


def _check_known(ledger: Ledger) -> None:
    rule = "a kept block is that of one known prefix"
    cache, kept = ledger.sharing.cache, ledger.allocator.kept
    num_kept = np.count_nonzero(kept)
    if not num_kept == len(cache.blocks) == len(cache._prefixes):
        fail(rule, f"{num_kept} are kept, {len(cache.blocks)} have a prefix")
    blocks = _in_turn(ledger, len(cache.by_block), BLOCKS_AT_A_TIME)
    for block, is_kept in zip(blocks.tolist(), kept[blocks].tolist(), strict=True):
        prefix = cache.by_block[block]
        if (prefix != ROOT) is not is_kept:
            fail(rule, f"block {block} is kept: {is_kept}, known: {prefix != ROOT}")
        if prefix == ROOT:
            continue
        if cache.blocks[prefix] != block or cache._prefixes.get(cache._keys[block]) != prefix:
            fail(rule, f"the prefix of block {block} cannot be found")
        if (before := cache.before(block)) != ROOT and before not in cache.blocks:
            fail(rule, f"what the prefix of block {block} begins with is not known")


def _check_holders(ledger: Ledger, blocks: np.ndarray, before: np.ndarray) -> None:
    rule = "whoever holds a prefix's block holds those before it"
    references = ledger.allocator.references
    wrong = (references[blocks] > references[before]).nonzero()[0]
    if len(wrong):
        block, first = blocks[wrong[0]], before[wrong[0]]
        fail(rule, f"block {block} has more holders than {first} before it")


def _check_order(ledger: Ledger, blocks: np.ndarray, before: np.ndarray) -> None:
    rule = "a cached block is taken before those that its prefix begins with"
    cached = ledger.allocator.cached_blocks
    place = np.full(ledger.allocator.num_blocks, len(cached))  # of others: after all of them
    place[cached] = np.arange(len(cached))
    wrong = (place[blocks] > place[before]).nonzero()[0]
    if len(wrong):
        block, first = blocks[wrong[0]], before[wrong[0]]
        fail(rule, f"block {first} is taken before {block}, which begins with it")


def _check_chains(ledger: Ledger, final: np.ndarray) -> None:
    """`final`: the blocks that others know, bool [num_blocks]."""
    rule = "a row shares what has its own tokens, and only that"
    sharing, tables, cache = ledger.sharing, ledger.tables, ledger.sharing.cache
    size, width = tables.block_size, tables.block_size * ledger.rows.tokens.itemsize
    for row in ledger.rows.live.nonzero()[0].tolist():
        table, count = tables.table(row), int(sharing.published[row])
        shared, data = table[:count].tolist(), ledger.rows.tokens[row, : count * size].tobytes()
        for index in _in_turn(ledger, count, BLOCKS_OF_A_ROW).tolist():
            prefix = cache.by_block[shared[index]]
            if prefix == ROOT:
                continue  # it was withdrawn, and so were those behind it
            before = cache.by_block[shared[index - 1]] if index else ROOT
            tokens = data[index * width : (index + 1) * width]
            if cache.longer(before, tokens) != prefix:
                fail(rule, f"block {shared[index]} of row {row} has other tokens than its own")
        own = table[count:]
        wrong = own[final[own]]
        if len(wrong):
            fail(rule, f"row {row} may still write to blocks {wrong.tolist()}, which others know")


def _check_published(ledger: Ledger) -> None:
    rule = "what is published was written and accepted"
    rows, sharing = ledger.rows, ledger.sharing
    if not sharing.enabled:
        return
    published = sharing.published * ledger.tables.block_size
    accepted = rows.accepted.copy()
    for row in rows.held.nonzero()[0].tolist():  # what else it has is nobody's
        accepted[row] = len(rows.request[row].tokens)
    ordered = (
        (published <= rows.written) & (rows.written <= rows.computed) & (rows.written <= accepted)
    )
    wrong = (rows.live & ~ordered).nonzero()[0]
    if len(wrong):
        row = int(wrong[0])
        fail(
            rule,
            f"of row {row} {published[row]} tokens are published, {rows.written[row]} written, "
            f"{accepted[row]} accepted, {rows.computed[row]} written or in flight",
        )


def _check_writes(ledger: Ledger, window: Window, final: np.ndarray) -> None:
    """`final`: the blocks that are published or shared, bool [num_blocks]."""
    rule = "no step in flight writes to a block that is published or shared"
    for step in window.steps:
        blocks = step.slots[len(step.answers) :] // ledger.tables.block_size
        wrong = blocks[final[blocks]]
        if len(wrong):
            fail(rule, f"step {step.step_id} writes to {np.unique(wrong).tolist()}")
