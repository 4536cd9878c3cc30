"""What stays of a request that ended well."""

from __future__ import annotations

import enum


class Hold(enum.Enum):
    """A held row computes on, for nobody, until no other row runs: so does a static batch.
    A request that fails or is cancelled leaves at once whatever the hold."""

    NOTHING = "nothing"  # row and blocks are free for the next step
    ROW = "row"  # its row; whoever asked is told at once
    ROW_AND_END = "row and end"  # its row, and the news of its end
