"""The figures behind the pictures, as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from deploy.bench.batching.loads import LONG, SHORT
from deploy.bench.batching.policies import Bill
from deploy.bench.batching.throughput import BatchRate


def write_rates(path: Path, rates: Sequence[BatchRate]) -> None:
    header = ("batch", "round", "decode_tokens_per_s", "overall_tokens_per_s", "step_ms")
    lines = (
        (r.batch, r.round, f"{r.decode:.1f}", f"{r.overall:.1f}", f"{1e3 * r.step_seconds:.2f}")
        for r in rates
    )
    _write(path, header, lines)


def write_bills(path: Path, bills: Sequence[Bill]) -> None:
    header = (
        *("load", "policy", "pool_blocks", "round", "requests", "issued_tokens", "useful_tokens"),
        *("wasted_share", "dead_share", "seconds", "useful_tokens_per_s", "preemptions"),
        *("recomputed_tokens", "mean_blocks", "peak_blocks", "short_latency_p50_s"),
        *("short_latency_p99_s", "short_over_own_work_p50", "long_latency_p50_s", "void"),
    )
    _write(path, header, map(_bill_line, bills))


def _bill_line(bill: Bill) -> tuple[object, ...]:
    held = bill.occupancy.blocks.sum(axis=1)
    mean = np.average(held, weights=bill.occupancy.ends - bill.occupancy.starts)
    short, long = bill.latencies(SHORT), bill.latencies(LONG)
    return (
        *(bill.load, bill.policy.value, bill.pool, bill.round, len(bill.requests)),
        *(bill.issued, bill.useful, f"{bill.wasted:.4f}", f"{bill.dead:.4f}"),
        *(f"{bill.seconds:.3f}", f"{bill.useful / bill.seconds:.1f}", bill.preemptions),
        *(bill.recomputed, f"{mean:.1f}", held.max()),
        *(f"{np.percentile(short, q):.3f}" for q in (50, 99)),
        *(f"{np.median(bill.over_own_work(SHORT)):.2f}", f"{np.median(long):.3f}"),
        bill.void or "",
    )


def write_requests(path: Path, bills: Sequence[Bill]) -> None:
    header = (
        *("load", "policy", "pool_blocks", "round", "group", "prompt_tokens", "output_tokens"),
        *("arrival_s", "first_token_s", "latency_s", "own_work_s", "dead_s", "latency_over_own"),
        *("issued_tokens", "admissions"),
    )
    lines = (
        (
            *(bill.load, bill.policy.value, bill.pool, bill.round),
            *(s.asked.group, s.asked.prompt_len, s.work.useful, f"{s.asked.time:.3f}"),
            *(f"{s.first_token:.4f}", f"{s.latency:.4f}", f"{s.work.own_seconds:.4f}"),
            *(f"{s.work.dead_seconds:.4f}", f"{s.over_own_work:.2f}"),
            *(s.work.issued, s.work.admissions),
        )
        for bill in bills
        for s in bill.requests
    )
    _write(path, header, lines)


def write_occupancy(path: Path, bills: Sequence[Bill]) -> None:
    """A line whenever a row's number of blocks changes."""
    most = max(bill.recording.max_rows for bill in bills)
    rows = tuple(f"row_{row}_blocks" for row in range(most))
    header = ("load", "policy", "pool_blocks", "round", "second", *rows)
    _write(path, header, (line for bill in bills for line in _occupancy_lines(bill)))


def _occupancy_lines(bill: Bill) -> Iterable[tuple[object, ...]]:
    before: list[int] = []
    for second, blocks in zip(bill.occupancy.starts, bill.occupancy.blocks.tolist(), strict=True):
        if blocks != before:
            yield (bill.load, bill.policy.value, bill.pool, bill.round, f"{second:.3f}", *blocks)
        before = blocks


def _write(path: Path, header: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)
