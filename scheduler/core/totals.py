"""What the engine counts from its start on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    steps: int = 0  # answered
    prompt_tokens: int = 0  # of requests that were started
    output_tokens: int = 0  # accepted and passed on
    discarded_tokens: int = 0  # sampled after their request's end
    preemptions: int = 0  # for want of blocks, or because the worker was lost
