"""Every running row and the owner of every block, for whoever asks."""

from __future__ import annotations

import numpy as np

from scheduler.core.block_allocator import SCRATCH_BLOCK
from scheduler.core.front_end import (
    CACHED_BLOCK,
    FREE_BLOCK,
    SCRATCH_OWNER,
    LatencyCounts,
    Snapshot,
    SnapshotRequest,
)
from scheduler.core.histogram import Histogram
from scheduler.core.ledger import Ledger
from scheduler.core.rows import Rows
from scheduler.core.statistics import RequestTimes


def take_snapshot(
    asked: SnapshotRequest, ledger: Ledger | None, times: RequestTimes, now: float
) -> Snapshot:
    """`ledger` None: no worker has connected yet, and nothing runs."""
    first_token, inter_token = _counts(times.first_token), _counts(times.inter_token)
    if ledger is None:
        none, seconds = np.empty(0, np.int32), np.empty(0)
        columns = (none, none, none, none, none, none, seconds)
        return Snapshot(asked.handle, [], *columns, first_token, inter_token)
    rows = ledger.rows
    live = np.flatnonzero(rows.live)
    requests = rows.request[live]
    started = [now if request.started_at is None else request.started_at for request in requests]
    prompt_lens = rows.prompt_len[live]
    return Snapshot(
        handle=asked.handle,
        request_ids=[request.request_id for request in requests],
        rows=live.astype(np.int32),
        prompt_tokens=prompt_lens.astype(np.int32),
        computed_tokens=rows.computed[live].astype(np.int32),
        output_tokens=(_accepted(rows, live) - prompt_lens).astype(np.int32),
        max_tokens=(rows.limit[live] - prompt_lens).astype(np.int32),
        blocks=ledger.tables.num_blocks[live].copy(),
        seconds=now - np.array(started, np.float64),
        first_token=first_token,
        inter_token=inter_token,
        block_owners=_block_owners(ledger, live) if asked.block_map else None,
    )


def _counts(histogram: Histogram) -> LatencyCounts:
    return LatencyCounts(histogram.bounds, histogram.counts, histogram.sum)


def _accepted(rows: Rows, live: np.ndarray) -> np.ndarray:
    """Tokens of each request, int64 [r]; a held row has more, which are nobody's."""
    accepted = rows.accepted[live]
    held = rows.held[live]
    accepted[held] = [len(request.tokens) for request in rows.request[live[held]]]
    return np.asarray(accepted)


def _block_owners(ledger: Ledger, live: np.ndarray) -> np.ndarray:
    """int32 [num_blocks]: see Snapshot."""
    owners = np.full(ledger.allocator.num_blocks, FREE_BLOCK, np.int32)
    owners[ledger.allocator.cached_blocks] = CACHED_BLOCK
    owners[SCRATCH_BLOCK] = SCRATCH_OWNER
    for row in live:
        owners[ledger.tables.table(row)] = row
    return owners
