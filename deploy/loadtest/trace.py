"""A trace to replay: when requests came, and how long they were."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.loadtest.lengths import LONGEST

COLUMNS = ("time", "prompt_len", "output_len")


@dataclass(frozen=True, slots=True)
class TraceLine:
    time: float  # seconds from the trace's first line
    prompt_len: int  # tokens
    output_len: int  # tokens
    group: str  # "" if the trace has no groups


def read_trace(path: Path) -> tuple[TraceLine, ...]:
    """Lines of a CSV file with a header, or of a JSONL file if its name ends in ".jsonl":
    time (seconds), prompt_len, output_len and, if wanted, group. Ordered by time, which
    starts at 0. Raises OSError, and ValueError with the line's number."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = _json_rows(path, file) if path.suffix == ".jsonl" else _csv_rows(path, file)
        lines = [_line(f"{path}, line {number}", row) for number, row in rows]
    if not lines:
        raise ValueError(f"{path} has no requests")
    first = min(line.time for line in lines)
    shifted = (TraceLine(x.time - first, x.prompt_len, x.output_len, x.group) for x in lines)
    return tuple(sorted(shifted, key=lambda line: line.time))


def _csv_rows(path: Path, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(file, skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ValueError(f"{path}: its first line must name {', '.join(COLUMNS)}; no {missing[0]}")
    for row in reader:
        yield reader.line_num, row


def _json_rows(path: Path, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in enumerate(file, 1):
        if text.strip():
            try:
                row = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: must be an object, is {row!r:.40}")
            yield number, row


def _line(where: str, row: dict[str, Any]) -> TraceLine:
    numbers = {}
    for name in COLUMNS:
        try:
            numbers[name] = float(row[name])
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{where}: {name} is {row.get(name)!r}, must be a number") from None
    if not math.isfinite(numbers["time"]):
        raise ValueError(f"{where}: time is {numbers['time']}, must be finite")
    for name in COLUMNS[1:]:
        if not (1 <= numbers[name] <= LONGEST and numbers[name].is_integer()):
            raise ValueError(
                f"{where}: {name} is {row[name]}, must be a whole number, 1 to {LONGEST}"
            )
    group = row.get("group") or ""
    lengths = int(numbers["prompt_len"]), int(numbers["output_len"])
    return TraceLine(numbers["time"], *lengths, str(group))
