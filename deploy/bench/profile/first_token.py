"""From a client's prompt to its first token: who took how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.bench.profile.steps import Column, Steps
from deploy.bench.profile.trace_file import Trace


@dataclass(frozen=True, slots=True, eq=False)
class FirstToken:
    """`steps`: one for each prompt, which came alone. `due`, `sent` and `seen`: when each was to be
    sent, had been, and had its token, by the client, in seconds of time.monotonic(). `requests`: of
    each the moments of traced_hub.COLUMNS, ns; None where the front end is in the engine's process.
    """

    prompt: int  # ids
    steps: Steps
    due: Sequence[float]
    sent: Sequence[float]
    seen: Sequence[float]
    requests: Mapping[str, NDArray[np.int64]] | None = None

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
        due, sent, seen = (
            1e3 * np.asarray(at) - s.origin for at in (self.due, self.sent, self.seen)
        )
        between = {
            "encode": s.sent - s.sending,
            "wire, out": s.arrived - s.sent,
            "queue": s.started - s.arrived,
            "check": s.launching - s.started,
            "launch, found done": s.computing - s.launching,
            "device, forward": s.sampling - s.computing,
            "device, sampling": s.sampled - s.sampling,
            "answer": s.answered - s.done,
            "wire, back": s.taken - s.answered,
        }
        if self.requests is None:
            out = {"front end, engine": s.sending - sent}
            back = {"engine, front end, client": seen - s.taken}
        else:
            called, received, delivering = (at / 1e6 - s.origin for at in self.requests.values())
            # The client tells the time once it has sent, by when the call may be there.
            sent = np.minimum(sent, called)
            out = {
                "to the front end": called - sent,
                "front end": received - called,
                "engine": s.sending - received,
            }
            back = {
                "engine, back": delivering - s.taken,
                "front end, client": seen - delivering,
            }
        return {"client": sent - due} | out | between | back

    def to_json(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "ms": self.milliseconds, "parts_ms": self.parts}

    def describe(self) -> str:
        """For people."""
        parts = ", ".join(f"{name} {value:.3f}" for name, value in self.parts.items())
        return (
            f"first token of one prompt of {self.prompt}: {self.milliseconds:.2f} ms, medians over "
            f"{len(self.due)} prompts\n  in ms: {parts}"
        )


def requests_of_prompts(
    hub: Trace, spans: Sequence[tuple[float, float]]
) -> Mapping[str, NDArray[np.int64]]:
    """The one request of each prompt, which came to a front end within its span (seconds,
    time.monotonic()). Raises ValueError where there is another number of them."""
    called = hub.columns["called"] / 1e9
    found = [np.flatnonzero((called > since) & (called < until)) for since, until in spans]
    if counts := {len(requests) for requests in found} - {1}:
        raise ValueError(f"{max(counts)} requests came where one was sent: nobody else may send")
    chosen = np.concatenate(found)
    return {name: values[chosen] for name, values in hub.columns.items()}
