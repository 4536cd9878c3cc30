"""Grafana's units, as the size and the name that an axis gets."""

from __future__ import annotations

# From the largest on: what a step of the axis is worth, and what it is called.
_UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "percentunit": ((0.01, "%"),),
    "reqps": ((1, "requests/s"),),
    "short": ((1, ""),),
}


def scale(unit: str, highest: float) -> tuple[float, str]:
    """What values up to `highest` are divided by, and the name of that. Raises ValueError for a
    unit that is not known here."""
    if unit not in _UNITS:
        raise ValueError(f"unit {unit!r} must be one of {', '.join(_UNITS)}")
    sizes = _UNITS[unit]
    return next((size for size in sizes if highest >= size[0]), sizes[-1])
