"""The prefix cache's invariants: what is shared was written, and is not written again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scheduler.core.audit_error import fail
from scheduler.core.ledger import Ledger
from scheduler.core.prefix_cache import Prefix
from scheduler.core.window import Window


def check_prefixes(ledger: Ledger, window: Window) -> None:
    """Raises AuditError at the first rule that does not hold. Of no use before the free list
    and the references are known to be right."""
    prefixes = list(_below(ledger.sharing.cache.root))
    _check_known(ledger, prefixes)
    _check_holders(ledger, prefixes)
    _check_order(ledger)
    _check_chains(ledger)
    _check_published(ledger)
    _check_writes(ledger, window)


def _below(prefix: Prefix) -> Iterator[Prefix]:
    waiting = list(prefix.children.values())
    while waiting:
        yield (prefix := waiting.pop())
        waiting += prefix.children.values()


def _check_known(ledger: Ledger, prefixes: list[Prefix]) -> None:
    rule = "a kept block is that of one known prefix"
    by_block = ledger.sharing.cache.by_block
    for prefix in prefixes:
        if by_block[prefix.block] is not prefix:
            fail(rule, f"block {prefix.block} is another's")
    known = sorted(prefix.block for prefix in prefixes)
    kept = np.flatnonzero(ledger.allocator.kept).tolist()
    if known != kept or known != [block for block, prefix in enumerate(by_block) if prefix]:
        fail(rule, f"blocks {kept} are kept, those of the prefixes are {known}")


def _check_holders(ledger: Ledger, prefixes: list[Prefix]) -> None:
    rule = "whoever holds a prefix's block holds those before it"
    references = ledger.allocator.references
    for prefix in prefixes:
        before = prefix.parent
        if before is None or before is ledger.sharing.cache.root:
            continue
        if references[prefix.block] > references[before.block]:
            fail(rule, f"block {prefix.block} has more holders than {before.block} before it")


def _check_order(ledger: Ledger) -> None:
    rule = "a cached block is taken before those that its prefix begins with"
    later = set(cached := ledger.allocator.cached_blocks.tolist())
    for block in cached:
        later.remove(block)
        prefix = ledger.sharing.cache.by_block[block]
        if prefix is None or any(child.block in later for child in prefix.children.values()):
            fail(rule, f"block {block} has one behind it that is taken later")


def _check_chains(ledger: Ledger) -> None:
    rule = "a row shares what has its own tokens, and only that"
    sharing, tables, size = ledger.sharing, ledger.tables, ledger.tables.block_size
    by_block = sharing.cache.by_block
    for row in np.flatnonzero(ledger.rows.live).tolist():
        table, count = tables.table(row).tolist(), int(sharing.published[row])
        before: Prefix | None = sharing.cache.root
        for index, block in enumerate(table[:count]):
            prefix = by_block[block]
            tokens = ledger.rows.tokens[row, index * size : (index + 1) * size].tobytes()
            # After one that was withdrawn there is none.
            if prefix and (prefix.parent is not before or prefix.tokens != tokens):
                fail(rule, f"block {block} of row {row} has other tokens than its place {index}")
            before = prefix
        others = [b for b in table[count:] if by_block[b] or ledger.allocator.references[b] > 1]
        if others:
            fail(rule, f"row {row} may still write to blocks {others}, which others know")


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
