"""What is seen of one request while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from deploy.loadtest.timeline import Timeline
from deploy.loadtest.workload import Request


class Record:
    """Times are time.monotonic(), which all processes of a machine share."""

    __slots__ = (
        "answer",
        "cached_tokens",
        "cancelled",
        "detail",
        "ended",
        "finished",
        "has_text",
        "on_end",
        "output_tokens",
        "planned",
        "prompt_tokens",
        "request",
        "request_id",
        "sent",
        "stage",
        "status",
        "times",
        "token_counts",
        "tokens",
    )

    def __init__(self, request: Request, planned: float, stage: int, request_id: str) -> None:
        self.request = request
        self.planned = planned
        self.stage = stage
        self.request_id = request_id
        self.sent: float | None = None
        self.times: list[float] = []
        self.token_counts: list[int] = []
        self.has_text: list[bool] = []
        self.tokens = 0
        self.answer: list[int] | list[str] | None = None  # kept for a conversation's next turn
        self.prompt_tokens = 0
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finished = False  # the server said so
        self.ended: float | None = None
        self.status = ""
        self.detail = ""
        self.cancelled = False
        self.on_end: Callable[[Record], None] | None = None

    @property
    def has_enough(self) -> bool:
        """Whether the plan says to cancel it here."""
        most = self.request.cancel_after
        return most is not None and self.tokens >= most and not self.finished

    def mark_sent(self) -> None:
        self.sent = time.monotonic()

    def message(self, tokens: int, has_text: bool) -> None:
        """A message came in, just now."""
        self.times.append(time.monotonic())
        self.token_counts.append(tokens)
        self.has_text.append(has_text)
        self.tokens += tokens

    def end(self, status: str, detail: str = "", cancelled: bool = False) -> None:
        """It ended, just now. The first end counts, and is told."""
        if self.ended is None:
            self.ended = time.monotonic()
            self.status, self.detail, self.cancelled = status, detail, cancelled
            if self.on_end is not None:
                self.on_end(self)

    def timeline(self, origin: float, measured_from: float) -> Timeline:
        """Of an ended one; `origin` is the run's start, and what was planned earlier than
        `measured_from` is warm-up."""
        if self.ended is None:
            raise RuntimeError(f"request {self.request.index} has not ended")
        return Timeline(
            index=self.request.index,
            planned=_since(origin, self.planned),
            sent=None if self.sent is None else _since(origin, self.sent),
            times=np.round(np.array(self.times, np.float64) - origin, 6),
            token_counts=np.array(self.token_counts, np.int32),
            has_text=np.array(self.has_text, np.bool_),
            ended=_since(origin, self.ended),
            status=self.status,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            cancelled=self.cancelled,
            slow_reader=self.request.is_slow,
            warm_up=self.planned < measured_from,
            stage=self.stage,
            group=self.request.group,
            request_id=self.request_id,
            detail=self.detail,
            to_cancel=self.request.cancel_after is not None,
        )


def _since(origin: float, moment: float) -> float:
    """To the microsecond: what is beyond is noise, and would double the saved file."""
    return round(moment - origin, 6)
