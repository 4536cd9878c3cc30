"""What ends a start, to be told to whoever started us."""

from __future__ import annotations


class StartError(Exception):
    """The scheduler cannot start; the message says why and what to do."""
