"""What a step costs whom, on average over steady steps; milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.bench.profile.steps import Steps

_FEW_STREAMS = 32  # from which on there is enough on the device to hide the host behind
_SMALLEST_SHARE = 0.01  # of a step, below which a thread or kernel is not shown
_MOST_KERNELS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """`threads`: CPU time of a step by process and thread."""

    streams: int
    steps: Steps
    threads: Mapping[str, Mapping[str, float]]
    kernels: Sequence[Mapping[str, Any]]

    @property
    def idle_share(self) -> float:
        """Of the time from step to step, in which the device had nothing to do."""
        return float(self.steps.idle.mean()) / self.steps.interval

    @property
    def idle_target(self) -> float:
        """What `idle_share` is to stay under."""
        return 0.08 if self.streams < _FEW_STREAMS else 0.03

    @property
    def parts(self) -> dict[str, float]:
        """Means along a step's way."""
        s = self.steps
        spans = {
            "plan": s.sending - s.planning,
            "encode": s.sent - s.sending,
            "wire, out": s.arrived - s.sent,
            "queue": s.started - s.arrived,
            "check": s.launching - s.started,
            "launch": s.launched - s.launching,
            "device, idle before": s.idle,
            "device, forward": s.sampling - s.computing,
            "device, sampling": s.sampled - s.sampling,
            "found done": s.done - s.sampled - s.copy,
            "answer": s.answered - s.done,
            "wire, back": s.taken - s.answered,
        }
        return {name: float(span.mean()) for name, span in spans.items()} | {"device, copy": s.copy}

    def to_json(self) -> dict[str, Any]:
        return {
            "streams": self.streams,
            "steps": len(self.steps),
            "interval_ms": self.steps.interval,
            "idle_share": self.idle_share,
            "parts_ms": self.parts,
            "cpu_ms": {process: dict(times) for process, times in self.threads.items()},
            "kernels": list(self.kernels),
        }

    def describe(self) -> str:
        """For people."""
        step, parts = self.steps.interval, self.parts
        busy = step - parts["device, idle before"]
        lines = [
            f"batch {self.streams}: a step every {step:.3f} ms, over {len(self.steps)} steps",
            f"  device: busy {busy:.3f} ms, idle {parts['device, idle before']:.3f} ms = "
            f"{self.idle_share:.1%} (to stay under {self.idle_target:.0%})",
            "  along a step's way, ms: "
            + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()),
        ]
        for process, times in self.threads.items():
            shown = {n: ms for n, ms in times.items() if ms >= _SMALLEST_SHARE * step}
            lines.append(
                f"  {process}, CPU ms of a step: {sum(times.values()):.3f}"
                + "".join(f", {name} {ms:.3f}" for name, ms in shown.items())
            )
        for kernel in self.kernels[:_MOST_KERNELS]:
            lines.append(
                f"  {kernel['us_per_step']:9.1f} us in {kernel['launches_per_step']:6.1f} of "
                f"{str(kernel['name'])[:70]}"
            )
        return "\n".join(lines)
