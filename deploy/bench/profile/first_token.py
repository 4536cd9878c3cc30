"""From a client's prompt to its first token: who took how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy.bench.profile.steps import Column, Steps


@dataclass(frozen=True, slots=True, eq=False)
class FirstToken:
    """`steps`: one for each prompt, which came alone. `due` and `seen`: when each was sent and had
    its token, by the client, in seconds of time.monotonic()."""

    prompt: int  # ids
    steps: Steps
    due: Sequence[float]
    seen: Sequence[float]

    @property
    def milliseconds(self) -> float:
        return float(np.median(1e3 * (np.asarray(self.seen) - np.asarray(self.due))))

    @property
    def parts(self) -> dict[str, float]:
        """Medians over the prompts, ms."""
        return {name: float(np.median(span)) for name, span in self.spans.items()}

    @property
    def spans(self) -> dict[str, Column]:
        """Of each prompt, ms; one after the other. Of the device its own time is known, and not
        when: what is beside it between the launch's begin and the step found done is the launch and
        the finding."""
        s = self.steps
        due, seen = (1e3 * np.asarray(at) - s.origin for at in (self.due, self.seen))
        return {
            "client, front end, engine": s.sending - due,
            "encode": s.sent - s.sending,
            "wire, out": s.arrived - s.sent,
            "queue": s.started - s.arrived,
            "check": s.launching - s.started,
            "launch, found done": s.computing - s.launching,
            "device, forward": s.sampling - s.computing,
            "device, sampling": s.sampled - s.sampling,
            "answer": s.answered - s.done,
            "wire, back": s.taken - s.answered,
            "engine, front end, client": seen - s.taken,
        }

    def to_json(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "ms": self.milliseconds, "parts_ms": self.parts}

    def describe(self) -> str:
        """For people."""
        parts = ", ".join(f"{name} {value:.3f}" for name, value in self.parts.items())
        return (
            f"first token of one prompt of {self.prompt}: {self.milliseconds:.2f} ms, medians over "
            f"{len(self.due)} prompts\n  in ms: {parts}"
        )
