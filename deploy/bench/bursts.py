"""Bursts of requests from clients that stay connected, so that a repetition costs no start."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from deploy.loadtest.arrivals import Burst
from deploy.loadtest.fleet import Fleet
from deploy.loadtest.measures import measure
from deploy.loadtest.orders import Looped, Order, Scheduled, Setup
from deploy.loadtest.plan import MOST_REQUESTS, Content, LoadPlan, Mixed512, Nanoserve
from deploy.loadtest.timeline import Timeline
from deploy.loadtest.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class BurstTimes:
    """Seconds; of moments, from the one at which all requests were due, itself of
    time.monotonic()."""

    due: float
    sent: tuple[float, ...]  # each request, by the load tool
    first_tokens: tuple[float, ...]  # of each stream
    end: float
    tokens: int  # of all streams
    gaps: NDArray[np.float64]  # before each token but the first message's, all streams together


class Bursts:
    """`processes` of the load tool, connected to `address` from entering on: each `send` is a
    burst of `size` requests, which no other burst sent. Greedy unless there is a temperature,
    past the end tokens."""

    def __init__(
        self,
        address: str,
        content: Content | Mixed512,
        size: int,
        *,
        vocab_size: int,
        seed: int = 0,
        processes: int = 1,
        connections: int = 4,
        temperature: float = 0.0,
    ) -> None:
        """`connections`: of each process, which takes them in turn."""
        self._size = size
        self._sent = 0
        plan = LoadPlan(
            Nanoserve(address),
            Burst(),
            content,
            requests=MOST_REQUESTS,  # of all bursts
            seed=seed,
            processes=processes,
            connections=connections,
            temperature=temperature,
            sample_interval=0,  # nothing else is to be asked of the server
            vocab_size=vocab_size,
        )
        self.workload = Workload(plan, vocab_size)
        self._origin = time.monotonic()
        setup = Setup(plan, vocab_size, secrets.token_hex(4), self._origin)
        self._fleet = Fleet(setup, min(processes, size), threading.Event())

    def __enter__(self) -> Self:
        """Raises LoadError if the server is not there."""
        self._fleet.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._fleet.__exit__(kind, error, traceback)

    def send(self) -> BurstTimes:
        """Returns when all have ended. Raises RuntimeError if a stream does not end with exactly
        the tokens that it asked for, LoadError if a process is lost."""
        indices = self._next(self._size)
        return self._times(self._carry_out(Scheduled(0, indices, np.zeros(self._size))))

    def send_in_turn(self, count: int) -> list[BurstTimes]:
        """`count` further requests by one user, who sends the next as soon as one has ended. Raises
        as `send` does."""
        timelines = self._carry_out(Looped(0, 1, self._next(count), math.inf))
        return [self._times([timeline]) for timeline in timelines]

    def _next(self, count: int) -> NDArray[np.int64]:
        first, self._sent = self._sent, self._sent + count
        return first + np.arange(count)

    def _carry_out(self, order: Order) -> list[Timeline]:
        _, timelines = self._fleet.carry_out(order, 0.0, lambda _: None)
        for timeline in timelines:
            self._check(timeline)
        return timelines

    def _times(self, timelines: Sequence[Timeline]) -> BurstTimes:
        measured = [measure(timeline) for timeline in timelines]
        return BurstTimes(
            self._origin + timelines[0].planned,
            tuple(t.sent - t.planned for t in timelines if t.sent is not None),
            tuple(m.first_token for m in measured if m.first_token is not None),
            max(timeline.ended - timeline.planned for timeline in timelines),
            sum(m.tokens for m in measured),
            np.concatenate([m.gaps for m in measured]),
        )

    def _check(self, timeline: Timeline) -> None:
        asked, came = self.workload.request(timeline.index).output_len, timeline.token_counts.sum()
        if timeline.status != "OK" or came != asked:
            raise RuntimeError(
                f"a stream ended with {timeline.status} after {came} tokens; {asked} were asked "
                f"for. {timeline.detail}".strip()
            )
