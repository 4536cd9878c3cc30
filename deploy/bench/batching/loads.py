"""The requests that the comparisons are made with, and what came of them."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deploy.loadtest.arrivals import Burst, Replay
from deploy.loadtest.lag import Lag
from deploy.loadtest.lengths import Fixed
from deploy.loadtest.plan import Content, LoadPlan, Nanoserve
from deploy.loadtest.requests import Requests
from deploy.loadtest.run import run_load
from deploy.loadtest.timeline import Run

SHORT, LONG = "short", "long"
PROMPT_TOKENS = 32
# A static batch may keep the last requests waiting for long; no run is cut short for it.
_PATIENT = {"sample_interval": 0, "request_timeout": 3600.0, "drain": 3600.0}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    time: float  # seconds from the first
    prompt_len: int
    output_len: int
    group: str


def seven_behind_one() -> list[Asked]:
    """One request of 32 tokens and seven of 4, at once."""
    slow = Asked(0.0, PROMPT_TOKENS, 32, LONG)
    return [slow, *(Asked(0.0, PROMPT_TOKENS, 4, SHORT) for _ in range(7))]


@dataclass(frozen=True, slots=True)
class Mix:
    """Answers as a chat service has them: three of four are short, the others ten times as
    long. Prompts of 16 to 64 ids; arrivals are Poisson. Always the same requests."""

    requests: int

    _SHORT = (2, 8)  # output tokens, both included
    _LONG = (32, 96)
    _PROMPT = (16, 64)

    @property
    def mean_output(self) -> float:
        return 0.75 * float(np.mean(self._SHORT)) + 0.25 * float(np.mean(self._LONG))

    @property
    def most_tokens(self) -> int:
        """Prompt and output of the largest request, all that one can hold in the pool."""
        return self._PROMPT[1] + self._LONG[1]

    def asked(self, rate: float) -> list[Asked]:
        """`rate` arrivals a second."""
        random = np.random.default_rng(0)
        times = np.cumsum(random.exponential(1.0, self.requests)) / rate
        is_long = random.permutation(np.arange(self.requests) % 4 == 0)
        requests = []
        for time, long in zip(times - times[0], is_long, strict=True):
            low, high = self._LONG if long else self._SHORT
            prompt_len = int(random.integers(self._PROMPT[0], self._PROMPT[1] + 1))
            output_len = int(random.integers(low, high + 1))
            requests.append(Asked(float(time), prompt_len, output_len, LONG if long else SHORT))
        return requests


def run_burst(
    address: str, count: int, prompt: int, output: int, seed: int, clients: int = 1
) -> Run:
    """`count` requests of the same lengths at once, from processes. Raises RuntimeError if one
    fails."""
    plan = LoadPlan(
        Nanoserve(address),
        Burst(),
        Content(Fixed(prompt), Fixed(output)),
        requests=count,
        seed=seed,
        processes=clients,
        **_PATIENT,
    )
    return _checked(run_load(plan))


def run_asked(address: str, asked: Sequence[Asked], seed: int = 0) -> Run:
    """As listed. Raises RuntimeError if one fails."""
    with tempfile.TemporaryDirectory(prefix="nanoserve-") as folder:
        trace = Path(folder) / "trace.csv"
        with trace.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("time", "prompt_len", "output_len", "group"))
            writer.writerows((a.time, a.prompt_len, a.output_len, a.group) for a in asked)
        plan = LoadPlan(
            Nanoserve(address),
            Replay(),
            Content(trace=trace),
            requests=len(asked),
            seed=seed,
            processes=1,
            **_PATIENT,
        )
        return _checked(run_load(plan))


def late(run: Run) -> str | None:
    """Why the load tool's own lag makes the run void; None if it does not."""
    return Lag.of(run, Requests.of(run)).void_reason


def _checked(run: Run) -> Run:
    for timeline in run.timelines:
        if timeline.status != "OK":
            raise RuntimeError(
                f"request {timeline.index} ended with {timeline.status}: {timeline.detail}"
            )
    return run
