"""How what a request has said changes what it says next."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Penalties:
    """As GenerateRequest of inference.proto tells; these change nothing."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0


NO_PENALTIES = Penalties()
