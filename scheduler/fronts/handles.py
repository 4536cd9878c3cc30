"""Handles of requests that say whose they are: a front end's number above, its count below.

Front ends have numbers, never used twice, so that no event reaches the successor of the one it
was meant for.
"""

from __future__ import annotations

NUMBER_BITS = 22
COUNT_BITS = 63 - NUMBER_BITS


def first_handle(number: int) -> int:
    """Of front end `number`, which counts on from there."""
    return number << COUNT_BITS | 1
