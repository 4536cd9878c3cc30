"""What the engine counts from its start on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    steps: int = 0  # answered
    prompt_tokens: int = 0  # of requests that were started
    output_tokens: int = 0  # accepted and passed on
    # Sampled after their request's end. Where the engine has ended an output before a
    # stop string is found in it, the tokens behind the stop string count as output.
    discarded_tokens: int = 0
    preemptions: int = 0  # for want of blocks, or because the worker was lost
    # Lost with a row that was taken away, and computed again.
    recomputed_tokens: int = 0
    prefix_queries: int = 0  # prompt tokens of requests started, looked up in the prefix cache
    prefix_hits: int = 0  # of those, the ones found there
    worker_restarts: int = 0  # incarnations after the first
