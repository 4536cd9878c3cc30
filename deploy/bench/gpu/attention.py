"""Rows of decode attention alone, from what deploy/bench/gpu/card.py timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.bench.floor import Rates
from deploy.bench.gpu.rows import Row


def attention_rows(times: Sequence[Mapping[str, float]], rates: Rates) -> list[Row]:
    """Percent of the read bandwidth; microseconds where one row alone has too few bytes for that
    to say anything."""
    return [_row(one, rates) for one in times]


def _row(times: Mapping[str, float], rates: Rates) -> Row:
    head_dim, rows, context = (times[name] for name in ("head_dim", "rows", "context"))
    key = f"attention {head_dim} {rows} {context}"
    title = f"attention, head_dim {head_dim}, {rows} x {context}"
    least = 1e6 * times["bytes"] / rates.read_bytes
    if rows == 1:
        return Row(key, title, "us", (times["us"],), least)
    return Row(key, title, "%", (100 * least / times["us"],), 100.0)
