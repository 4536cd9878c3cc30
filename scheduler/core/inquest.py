"""Finds who is to blame for the loss of a worker, by the rule of scheduler/core/suspicion.py."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.request import Request
from scheduler.core.window import Window

# A step hung if it had no answer for this share of the step timeout, which is far beyond what any
# takes, when its worker was gone. (One that ends itself for it does so before the whole of it.)
HUNG_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """`culprit`: the request that did it, if that is certain. `counts`: whether the loss says
    something of the worker, for the breaker. A refused step does not, and nor does a suspect that
    is lost alone once more before it is blamed, beyond what its first time said."""

    culprit: Request | None
    counts: bool


class Inquest:
    """What is known of why a worker is lost, from its beginning to its end."""

    def __init__(self) -> None:
        self._refused = False
        self._said = False
        self._hung = False

    def refused(self) -> None:
        """It refused a step, and the request at fault is found: others are not to blame."""
        self._refused = True

    def said(self) -> None:
        """It said that a step failed, before it ended."""
        self._said = True

    def hung(self) -> None:
        """It was lost, or given up, while a step hung."""
        self._hung = True

    def resumed(self) -> None:
        """It is the same one, and goes on."""
        self._hung = False

    def hold(self, window: Window) -> Finding:
        """Notes the loss on the requests that were in flight, whose tokens must be up to date."""
        refused, said, hung = self._refused, self._said, self._hung
        self._refused = self._said = self._hung = False
        if refused:
            return Finding(None, counts=False)
        concerned = {request for step in window.steps for request in step.all_requests}
        suspects = [r for r in concerned if r.suspicion.is_suspect(len(r.tokens))]
        for request in concerned:
            request.suspicion.lost(len(request.tokens))
        if not suspects or len(concerned) > 1:
            return Finding(None, counts=True)
        (suspect,) = suspects
        if said:
            return Finding(suspect, counts=True)
        first = suspect.suspicion.alone == 0
        suspect.suspicion.lost_alone(_in_flight(window), hung=hung)
        if suspect.suspicion.is_proven:
            return Finding(suspect, counts=True)
        return Finding(None, counts=first)


def _in_flight(window: Window) -> range:
    """The positions that the steps of a request alone compute."""
    first, last = window.steps[0], window.steps[-1]
    start = int(first.context_lens[0]) - first.num_tokens + len(first.answers)
    return range(start, int(last.context_lens[0]) + last.decode_steps - 1)
