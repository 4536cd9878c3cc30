"""Runs a plan."""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from deploy.bench.machine import machine
from deploy.loadtest.arrivals import Burst, Closed, Open, Ramp, Replay
from deploy.loadtest.fleet import Fleet, LoadError, default_processes
from deploy.loadtest.orders import Counts, Looped, Order, Scheduled, Setup
from deploy.loadtest.plan import MOST_REQUESTS, LoadPlan, Nanoserve
from deploy.loadtest.ramp import Judge, find_knee
from deploy.loadtest.sampler import Sampler
from deploy.loadtest.timeline import Run, Stage, Timeline
from deploy.loadtest.workload import Workload
from nanoserve import Client, NanoserveError

# What is told while a run goes on: what it does, and the requests of that so far.
OnCounts = Callable[[str, Counts], None]
_VOCAB_SIZE = 32_000  # where the server does not say


def run_load(
    plan: LoadPlan, on_counts: OnCounts = lambda *_: None, stop: threading.Event | None = None
) -> Run:
    """Starts generator processes, sends the plan's requests and waits for their ends.
    Setting `stop` ends it early, with what there is.

    Raises LoadError if the server cannot be reached or a process is lost, ValueError and
    OSError for a plan's files that cannot be used.
    """
    stop = stop or threading.Event()
    if not isinstance(plan.target, Nanoserve):
        return _run(plan, {}, None, on_counts, stop)
    access = plan.target.access()
    with Client(access.address, tls_ca=access.tls_ca, token=access.token) as client:
        return _run(plan, _look_at_server(client, plan.target), client, on_counts, stop)


def _run(
    plan: LoadPlan,
    server: dict[str, Any],
    client: Client | None,
    on_counts: OnCounts,
    stop: threading.Event,
) -> Run:
    plan = replace(
        plan,
        vocab_size=plan.vocab_size or server.get("vocab_size") or _VOCAB_SIZE,
        processes=plan.processes or default_processes(),
    )
    workload = Workload(plan, plan.vocab_size or _VOCAB_SIZE)  # files at fault are found here
    settings = plan.settings() | {"server": server, "machine": machine()}
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    origin = time.monotonic()
    setup = Setup(plan, plan.vocab_size or _VOCAB_SIZE, secrets.token_hex(4), origin)
    sampling = Sampler(client, plan.sample_interval, origin)
    with Fleet(setup, plan.processes or 1, stop) as fleet, sampling as sampler:
        load = _Load(plan, workload, fleet, origin, on_counts, stop)
        knee = load.carry_out()
    timelines = sorted(load.timelines, key=lambda timeline: timeline.index)
    return Run(
        settings=settings,
        started_at=started_at,
        stages=tuple(load.stages),
        timelines=tuple(timelines),
        samples=tuple(sampler.samples),
        interrupted=stop.is_set(),
        knee=knee,
    )


def _look_at_server(client: Client, target: Nanoserve) -> dict[str, Any]:
    try:
        status = client.status()
    except NanoserveError as error:
        why = "no connection could be made" if error.unreachable else error
        raise LoadError(f"no answer from the server at {target.address}: {why}") from None
    if not status.ready:
        raise LoadError(f"the server at {target.address} is not ready: {status.reason}")
    return asdict(status)


def _check_first_stage(ramp: Ramp, plan: LoadPlan, times: np.ndarray, most: int) -> None:
    what = f"the first stage of {ramp.stage_seconds:g} s at {ramp.first:g} requests a second"
    if len(times) > most:
        limit = plan.requests or MOST_REQUESTS
        raise ValueError(f"requests is {limit}, and {what} has more: allow more, or begin lower")
    if not (times <= ramp.stage_seconds / 2).any():
        raise ValueError(f"{what} has no request to judge by: make stage-seconds larger")


class _Load:
    """The orders of a plan, one after another, and what came of them."""

    def __init__(
        self,
        plan: LoadPlan,
        workload: Workload,
        fleet: Fleet,
        origin: float,
        on_counts: OnCounts,
        stop: threading.Event,
    ) -> None:
        self.stages: list[Stage] = []
        self.timelines: list[Timeline] = []
        self._plan = plan
        self._workload = workload
        self._fleet = fleet
        self._origin = origin
        self._on_counts = on_counts
        self._stop = stop
        self._next = 0  # conversation

    def carry_out(self) -> float | None:
        """All of the plan. Returns the knee, of a ramp."""
        plan, knee = self._plan, None
        if plan.warm_up_requests:
            numbers = -1 - np.arange(plan.warm_up_requests)
            order = Scheduled(0, numbers, np.zeros(len(numbers)))
            _, timelines = self._give("warm-up", order, math.inf)
            self.timelines += timelines
        if isinstance(plan.arrivals, Ramp):
            knee = self._climb(plan.arrivals)
        elif isinstance(plan.arrivals, Closed):
            self._loop(plan.arrivals)
        else:
            self._schedule(self._times(plan.arrivals), plan.seconds)
        return knee

    def _times(self, arrivals: Open | Burst | Replay) -> np.ndarray:
        """Of conversations, float64 [n], in seconds from the schedule's start."""
        plan = self._plan
        most = math.ceil((plan.requests or MOST_REQUESTS) / plan.turns)
        until = math.inf if plan.seconds is None else plan.seconds
        if isinstance(arrivals, Open):
            return arrivals.times(self._workload.arrival_seed(0), most, until)
        if isinstance(arrivals, Burst):
            return np.zeros(most)
        times = np.array([line.time for line in self._workload.trace]) / arrivals.speed
        return times[:most][times[:most] < until]

    def _schedule(self, times: np.ndarray, seconds: float | None) -> None:
        """One stage. It lasts `seconds` if the arrivals do, else until its last end."""
        plan = self._plan
        order = Scheduled(0, np.arange(len(times)), times)
        at, timelines = self._give("", order, plan.warm_up_seconds)
        most = plan.requests or math.inf
        if isinstance(plan.arrivals, Replay):
            most = min(most, len(self._workload.trace) * plan.turns)
        is_timed = seconds is not None and len(times) * plan.turns < most
        rate = None
        if isinstance(plan.arrivals, Open):
            rate = plan.arrivals.rate * plan.turns
        elif isinstance(plan.arrivals, Replay) and len(times) > 1:
            rate = len(times) * plan.turns / float(times[-1] or math.inf)
        self._add(at, timelines, seconds if is_timed else None, rate, None)

    def _loop(self, arrivals: Closed) -> None:
        plan = self._plan
        count = math.ceil((plan.requests or MOST_REQUESTS) / plan.turns)
        seconds = math.inf if plan.seconds is None else plan.seconds
        order = Looped(0, arrivals.users, np.arange(count), seconds)
        at, timelines = self._give("", order, plan.warm_up_seconds)
        # Users who run out of conversations stop before the time is up.
        is_timed = len(timelines) < (plan.requests or math.inf)
        self._add(at, timelines, plan.seconds if is_timed else None, None, arrivals.users)

    def _climb(self, ramp: Ramp) -> float | None:
        judge = Judge(ramp, self._plan.goodput)

        def holds(rate: float) -> bool | None:
            times = self._stage_times(ramp, rate)
            if times is None:
                return None
            number, first = len(self.stages), self._next
            self._next += len(times)
            order = Scheduled(number, np.arange(first, self._next), times)
            at, timelines = self._give(f"{rate:.3g} requests/s", order, 0.0)
            self._add(at, timelines, ramp.stage_seconds, rate, None)
            return None if self._stop.is_set() else judge.holds(self.stages[-1], timelines)

        return find_knee(ramp, holds)

    def _stage_times(self, ramp: Ramp, rate: float) -> np.ndarray | None:
        """Of the conversations of a ramp's next stage; None if the plan's bounds leave no room
        for it, since part of a stage says nothing of its rate. Raises ValueError if there is
        not even room for the first."""
        plan, number = self._plan, len(self.stages)
        left = (plan.requests or MOST_REQUESTS) // plan.turns - self._next
        arrivals = Open(rate / plan.turns, ramp.cv)
        seed = self._workload.arrival_seed(number)
        times = arrivals.times(seed, left + 1, ramp.stage_seconds)
        if number == 0:
            _check_first_stage(ramp, plan, times, left)
            return times
        end = time.monotonic() - self._origin - self.stages[0].start + ramp.stage_seconds
        is_over = plan.seconds is not None and end > plan.seconds
        return None if is_over or len(times) > left or self._stop.is_set() else times

    def _give(
        self, what: str, order: Order, warm_up_seconds: float
    ) -> tuple[float, list[Timeline]]:
        """Start, in seconds from the run's, and timelines."""
        at, timelines = self._fleet.carry_out(
            order, warm_up_seconds, lambda counts: self._on_counts(what, counts)
        )
        # As precise as timelines are: what is planned for the very start lies within.
        return round(at - self._origin, 6), timelines

    def _add(
        self,
        at: float,
        timelines: list[Timeline],
        seconds: float | None,
        rate: float | None,
        users: int | None,
    ) -> None:
        start = at + self._plan.warm_up_seconds
        last = max((t.ended for t in timelines if not t.warm_up), default=start)
        end = last if seconds is None or self._stop.is_set() else at + seconds
        self.stages.append(Stage(start, max(start, end), rate, users))
        self.timelines += timelines
