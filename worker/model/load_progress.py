"""How far a load has come: a bar on a terminal, lines of the log elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

log = logging.getLogger(__name__)


class LoadProgress:
    """Counts loaded bytes up to `total`; a context manager.

    Where stderr is no terminal, a line is logged at most every `interval` seconds and none for a
    load that takes less. Not `shown`, it only counts.
    """

    def __init__(self, total: int, shown: bool, interval: float = 2.0) -> None:
        self._total, self._interval = total, interval
        self._logs = shown and not sys.stderr.isatty()
        self._bar = tqdm(
            total=total,
            unit="B",
            unit_scale=True,
            desc="weights",
            disable=not shown or self._logs,
        )
        self._done = 0
        self._logged = time.monotonic()

    def add(self, count: int) -> None:
        self._bar.update(count)
        self._done += count
        if self._logs and time.monotonic() - self._logged >= self._interval:
            self._logged = time.monotonic()
            log.info(
                "weights: %d %% of %.2f GB", 100 * self._done // self._total, self._total / 1e9
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()
