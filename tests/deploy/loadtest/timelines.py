"""Timelines made by hand, in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deploy.loadtest.timeline import Timeline

# (time, ids) or (time, ids, has_text) of a message; a message with ids has text if unsaid.
Message = tuple[float, int] | tuple[float, int, bool]


def timeline(
    *messages: Message,
    end: float,
    planned: float = 0.0,
    sent: float | None = None,
    status: str = "OK",
    index: int = 0,
    prompt_tokens: int = 10,
    output_tokens: int | None = None,
    cached_tokens: int | None = None,
    cancelled: bool = False,
    to_cancel: bool = False,
    slow_reader: bool = False,
    warm_up: bool = False,
    stage: int = 0,
    group: str = "",
) -> Timeline:
    return Timeline(
        index=index,
        planned=planned / 1000,
        sent=(planned if sent is None else sent) / 1000,
        times=np.array([message[0] for message in messages], np.float64) / 1000,
        token_counts=np.array([message[1] for message in messages], np.int32),
        has_text=np.array([_has_text(message) for message in messages], np.bool_),
        ended=end / 1000,
        status=status,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
        cancelled=cancelled,
        to_cancel=to_cancel or cancelled,
        slow_reader=slow_reader,
        warm_up=warm_up,
        stage=stage,
        group=group,
        request_id=f"r{index}",
    )


def _has_text(message: Sequence[float]) -> bool:
    return bool(message[2]) if len(message) == 3 else message[1] > 0
