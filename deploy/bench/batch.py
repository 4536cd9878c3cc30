"""A fixed batch of requests, all sent at once by the load tool, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from deploy.bench.bursts import Bursts, BurstTimes
from deploy.loadtest.lengths import Fixed
from deploy.loadtest.plan import Content


@dataclass(frozen=True, slots=True)
class Batch:
    """`streams` prompts of `prompt` random ids, drawn from `seed`, sent by `processes`."""

    streams: int
    prompt: int
    vocab_size: int
    seed: int
    processes: int = 1
    connections: int = 4  # of each process, which takes them in turn
    temperature: float = 0.0

    def prompts(self) -> list[list[int]]:
        """What is sent first, for another engine to take."""
        workload = self.bursts("", 1).workload
        return [list(map(int, workload.request(i).prompt)) for i in range(self.streams)]

    def bursts(self, address: str, max_tokens: int) -> Bursts:
        """Each of them such a batch, with other ids."""
        return Bursts(
            address,
            Content(Fixed(self.prompt), Fixed(max_tokens)),
            self.streams,
            vocab_size=self.vocab_size,
            seed=self.seed,
            processes=self.processes,
            connections=self.connections,
            temperature=self.temperature,
        )

    def run(self, address: str, max_tokens: int) -> BurstTimes:
        """One of them. Raises as Bursts do."""
        with self.bursts(address, max_tokens) as bursts:
            return bursts.send()
