"""A run in figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from deploy.loadtest.cached import CachedPrompts
from deploy.loadtest.figures import Figures
from deploy.loadtest.goodput import Limits
from deploy.loadtest.lag import Lag
from deploy.loadtest.percentiles import METHOD
from deploy.loadtest.requests import Requests
from deploy.loadtest.server_load import ServerLoad
from deploy.loadtest.stage_text import stage_load
from deploy.loadtest.timeline import Run, Stage
from deploy.loadtest.usage import UsageCheck

FORMAT = "nanoserve-loadtest-report-1"


@dataclass(frozen=True, slots=True)
class Summary:
    """What is reported of a run. Warm-up requests are in none of the figures but the
    token rates, with what they were served inside the measuring window."""

    started_at: str
    settings: dict[str, Any]
    limits: Limits
    interrupted: bool
    window_seconds: float
    warm_up_requests: int
    not_due_requests: int  # the run, or their conversation, ended before
    unknown_prompts: int  # requests whose prompt tokens nobody counted
    lag: Lag
    usage: UsageCheck
    cached: CachedPrompts
    server: ServerLoad | None
    whole: Figures
    stages: tuple[tuple[Stage, Figures], ...]  # of a ramp, by rising rate; else none
    groups: dict[str, Figures]  # of a mix of several; else none
    knee: float | None

    @classmethod
    def of(cls, run: Run, limits: Limits) -> Self:
        requests = Requests.of(run)
        counted, traffic = requests.counted, requests.traffic
        return cls(
            started_at=run.started_at,
            settings=run.settings,
            limits=limits,
            interrupted=run.interrupted,
            window_seconds=sum(stage.seconds for stage in run.stages),
            warm_up_requests=len(requests.warm_up),
            not_due_requests=len(requests.not_due),
            unknown_prompts=sum(
                r.timeline.prompt_tokens == 0 and r.measures.tokens > 0 for r in counted
            ),
            lag=Lag.of(run, requests),
            usage=UsageCheck.of(counted),
            cached=CachedPrompts.of(counted),
            server=ServerLoad.of(run),
            whole=Figures.of(counted, traffic, run.stages, limits),
            stages=_stages(run, requests, limits),
            groups=_groups(run, requests, limits),
            knee=run.knee,
        )

    @property
    def void(self) -> bool:
        return self.lag.void_reason is not None

    def to_json(self) -> dict[str, Any]:
        """JSON values. Times are in seconds."""
        values = asdict(self)
        lag = values.pop("lag")
        whole = values.pop("whole")
        del values["limits"]  # goodput has them
        values["stages"] = [asdict(stage) | asdict(figures) for stage, figures in self.stages]
        return {
            "format": FORMAT,
            "void": self.void,
            "void_reason": self.lag.void_reason,
            "percentile_method": METHOD,
            **whole,
            "lag_seconds": lag["seconds"],
            **values,
        }


def _stages(run: Run, requests: Requests, limits: Limits) -> tuple[tuple[Stage, Figures], ...]:
    if len(run.stages) < 2:
        return ()
    figures = [
        Figures.of(
            [r for r in requests.counted if r.timeline.stage == number],
            requests.traffic,
            [stage],
            limits,
        )
        for number, stage in enumerate(run.stages)
    ]
    pairs = zip(run.stages, figures, strict=True)
    return tuple(sorted(pairs, key=lambda pair: stage_load(pair[0])))


def _groups(run: Run, requests: Requests, limits: Limits) -> dict[str, Figures]:
    names = sorted({request.timeline.group for request in requests.counted})
    if len(names) < 2:
        return {}
    return {
        name: Figures.of(
            [r for r in requests.counted if r.timeline.group == name],
            [r for r in requests.traffic if r.timeline.group == name],
            run.stages,
            limits,
        )
        for name in names
    }
