"""What a load run recorded: a timeline for each request, and the run that holds them.

Every time is in seconds from the run's start, by one monotonic clock.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

# Statuses of the tool's own, beside "OK", gRPC code names, "HTTP 503" and "CONNECT" (no
# connection): an answer that broke the protocol; a request that was sent and had not ended
# when the run did; one that was due and that the run never sent; and one that never came to
# be due, since the run ended before or the turn before it did not end well.
PROTOCOL = "PROTOCOL"
UNFINISHED = "UNFINISHED"
NOT_SENT = "NOT_SENT"
NOT_DUE = "NOT_DUE"


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One request. Its k messages are columns; messages without ids and text, such as
    the last one with the usage, are among them."""

    index: int  # in the plan
    planned: float  # when the schedule says that it arrives
    sent: float | None  # when it was handed to the transport; None if it never was
    times: NDArray[np.float64]  # [k]
    token_counts: NDArray[np.int32]  # [k] ids in the message
    has_text: NDArray[np.bool_]  # [k]
    ended: float  # when its end or failure was seen; the run's end if that came first
    status: str
    prompt_tokens: int  # as the server's usage says, else as sent; 0 if neither is known
    output_tokens: int | None  # as the server's usage says
    cancelled: bool = False  # by the tool, because the plan said so; status is CANCELLED
    slow_reader: bool = False  # the tool took its messages slowly, because the plan said so
    warm_up: bool = False  # not to be measured
    stage: int = 0  # which of Run.stages; of no meaning with warm_up
    group: str = ""  # the part of a mixed workload, "" if there are no parts
    request_id: str = ""
    detail: str = ""  # the failure's message
    to_cancel: bool = False  # the plan says to cancel it, however it ended
    cached_tokens: int | None = None  # of the prompt, not computed, as the server's usage says

    @property
    def left_alone(self) -> bool:
        """Whether the plan neither cancels it nor reads it slowly."""
        return not (self.cancelled or self.to_cancel or self.slow_reader)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of the run under one load; only a ramp has several."""

    start: float  # the measuring window: messages and ends from start to end count in rates
    end: float
    rate: float | None  # requests per second offered; None for a closed loop and a burst
    concurrency: int | None  # of a closed loop; None for an open one

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ServerSample:
    """What GetStatus said at time t."""

    t: float
    running: int
    waiting: int
    free_blocks: int
    usable_blocks: int
    preemptions: int  # total since the server's start


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """All of a run. `settings` holds what was asked for (seed, target, workload, ...) and
    under "machine" what it ran on; JSON values only."""

    settings: dict[str, Any]
    started_at: str  # UTC, RFC 3339
    stages: tuple[Stage, ...]  # at least one
    timelines: tuple[Timeline, ...]  # by index; every planned request is here
    samples: tuple[ServerSample, ...] = field(default=())
    interrupted: bool = False  # stopped by Ctrl-C
    knee: float | None = None  # of a ramp: the highest rate that held, requests per second

    @property
    def seconds(self) -> float:
        """The measuring window, all stages together."""
        return self.stages[-1].end - self.stages[0].start

    @property
    def lags(self) -> NDArray[np.float64]:
        """[requests sent] seconds from planned to sent, warm-up left out: the tool's own
        part of what it measures."""
        measured = [t for t in self.timelines if not t.warm_up and t.sent is not None]
        return np.array([t.sent - t.planned for t in measured if t.sent is not None], np.float64)

    def save(self, path: Path) -> None:
        """Writes JSON, gzipped if the name ends in ".gz"."""
        values = {name: getattr(self, name) for name in ("settings", "started_at", "knee")}
        values |= {
            "interrupted": self.interrupted,
            "stages": [asdict(stage) for stage in self.stages],
            "samples": [asdict(sample) for sample in self.samples],
            "timelines": [_timeline_to_json(timeline) for timeline in self.timelines],
        }
        data = json.dumps({"format": _FORMAT, **values}, separators=(",", ":")).encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises OSError, and ValueError for a file that `save` did not write."""
        data = path.read_bytes()
        try:
            values = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
            if values.pop("format") != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT!r}")
            values["stages"] = tuple(Stage(**stage) for stage in values["stages"])
            if not values["stages"]:
                raise ValueError("it has no stage")
            values["samples"] = tuple(ServerSample(**sample) for sample in values["samples"])
            values["timelines"] = tuple(map(_timeline_from_json, values["timelines"]))
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError) as error:
            raise ValueError(f"{path} is not a saved load run: {error}") from None


_FORMAT = "nanoserve-loadtest-1"
_COLUMNS = {"times": np.float64, "token_counts": np.int32, "has_text": np.bool_}


def _timeline_to_json(timeline: Timeline) -> dict[str, Any]:
    values = {name: getattr(timeline, name) for name in timeline.__slots__}
    return values | {name: values[name].tolist() for name in _COLUMNS}


def _timeline_from_json(values: dict[str, Any]) -> Timeline:
    columns: dict[str, Any] = {
        name: np.array(values[name], dtype) for name, dtype in _COLUMNS.items()
    }
    return Timeline(**values | columns)
