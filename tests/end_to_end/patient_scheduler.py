"""A scheduler that repeats decodes on a slow machine: `python -m
tests.end_to_end.patient_scheduler FLAGS`.

Its lookahead, beyond which nothing is repeated, is long enough for steps of any duration.
"""

from __future__ import annotations

import sys

from scheduler.__main__ import main
from scheduler.core import window

if __name__ == "__main__":
    window.LOOKAHEAD_SECONDS = 60.0
    sys.exit(main())
