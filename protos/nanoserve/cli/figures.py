"""Numbers as a person reads them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, without leading zero parts: 3725 is "1 h 2 min 5 s"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{value} {unit}" for value, unit in parts)


def latency(seconds: float | None) -> str:
    """Two or three figures and a unit, at most seven characters: "0.42 ms", "12.3 s"; "-" if
    there is none."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{_three_figures(seconds * 1e3)} ms"
    if seconds < 600:
        return f"{_three_figures(seconds)} s"
    return f"{seconds / 60:.0f} min"


def _three_figures(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def rate(per_second: float | None) -> str:
    """Whole numbers, one decimal below ten; "-" if there is none."""
    if per_second is None:
        return "-"
    return f"{per_second:,.1f}" if 0 < per_second < 9.95 else f"{per_second:,.0f}"


def share(part: float, whole: float) -> str:
    """In whole percent, which is 0 and 100 only of nothing and of everything."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 1:
        return "< 1 %"
    if 99 < percent < 100:
        return "> 99 %"
    return f"{percent:.0f} %"
