"""The one place that refuses a number out of its range."""

from __future__ import annotations


def check(name: str, value: float, low: float, high: float, unit: str = "") -> None:
    """Raises ValueError unless low <= value <= high (so not for NaN)."""
    if not low <= value <= high:
        unit = f" {unit}" if unit else ""
        raise ValueError(f"{name} is {value:g}, must be {low:g} to {high:g}{unit}")
