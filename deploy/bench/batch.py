"""A fixed batch of requests, all sent at once by the load tool, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.loadtest.arrivals import Burst
from deploy.loadtest.lengths import Fixed
from deploy.loadtest.plan import Content, LoadPlan, Nanoserve
from deploy.loadtest.run import run_load
from deploy.loadtest.workload import Workload


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Seconds from the moment that all were due."""

    first_tokens: tuple[float, ...]  # of each stream
    end: float


@dataclass(frozen=True, slots=True)
class Batch:
    """`streams` prompts of `prompt` random ids, drawn from `seed`, sent by `processes`."""

    streams: int
    prompt: int
    vocab_size: int
    seed: int
    processes: int = 1

    def prompts(self) -> list[list[int]]:
        """What is sent, for another engine to take."""
        workload = Workload(self._plan("", 1), self.vocab_size)
        return [list(map(int, workload.request(i).prompt)) for i in range(self.streams)]

    def run(self, address: str, max_tokens: int) -> BatchTimes:
        """Greedy, past the end tokens. Raises LoadError if the server is not there, and
        RuntimeError if a stream does not end with exactly `max_tokens` tokens."""
        run = run_load(self._plan(address, max_tokens))
        for timeline in run.timelines:
            if timeline.status != "OK" or timeline.token_counts.sum() != max_tokens:
                raise RuntimeError(
                    f"a stream ended with {timeline.status} after "
                    f"{timeline.token_counts.sum()} tokens; {max_tokens} were asked for. "
                    f"{timeline.detail}".strip()
                )
        first_tokens = [t.times[t.token_counts > 0][0] - t.planned for t in run.timelines]
        end = max(timeline.ended - timeline.planned for timeline in run.timelines)
        return BatchTimes(tuple(map(float, first_tokens)), end)

    def _plan(self, address: str, max_tokens: int) -> LoadPlan:
        return LoadPlan(
            Nanoserve(address),
            Burst(),
            Content(Fixed(self.prompt), Fixed(max_tokens)),
            requests=self.streams,
            seed=self.seed,
            processes=self.processes,
            sample_interval=0,  # nothing else is to be asked of the server
            vocab_size=self.vocab_size,
        )
