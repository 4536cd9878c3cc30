"""A stage's load, as a number and in words."""

from __future__ import annotations

from deploy.loadtest.timeline import Stage


def stage_load(stage: Stage) -> float:
    """Requests per second offered, or the users of a closed loop."""
    return stage.rate if stage.rate is not None else float(stage.concurrency or 0)


def stage_name(stage: Stage) -> str:
    """Such as "12.5/s" and "8 users"."""
    return f"{stage.rate:.4g}/s" if stage.rate is not None else f"{stage.concurrency} users"
