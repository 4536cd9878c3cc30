"""Numbers as a reader wants them: three or four digits, and a dash for none."""

from __future__ import annotations

NONE = "-"


def number(value: float | None) -> str:
    if value is None:
        return NONE
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f}"


def milliseconds(seconds: float | None) -> str:
    """Without the unit."""
    return number(None if seconds is None else 1000 * seconds)


def short_milliseconds(seconds: float | None) -> str:
    """Without the unit, to three digits, for where there is little room."""
    if seconds is None:
        return NONE
    value = 1000 * seconds
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f} %"


def count(n: int, noun: str) -> str:
    """Such as "1 request" and "1,000 requests"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
