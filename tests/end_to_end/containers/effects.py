"""The table of faults and what a client saw of each, with its times."""

from __future__ import annotations

from tests.end_to_end.containers.stream import Stream

_rows: list[tuple[str, str, str]] = []


def record(fault: str, stream: Stream, tokens: int) -> None:
    """Of a stream that ended with the right tokens."""
    _rows.append((fault, f"{stream.longest_gap:.1f} s", f"all {tokens} tokens, the right ones"))


def note(fault: str, seen: str) -> None:
    _rows.append((fault, "", seen))


def table() -> list[str]:
    """Its lines; none without a fault."""
    if not _rows:
        return []
    rows = [("fault", "longest pause", "what came"), ("---",) * 3, *_rows]
    return [f"| {' | '.join(row)} |" for row in rows]
