"""A scheduler small enough to be seen to be right: it makes valid random steps.

It plans with counts only, so steps may be made before earlier ones are answered, and takes
values when answers come. Blocks are taken from a shuffled free list.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from scheduler.core.worker_link import NewRow, StepPlan
from worker.geometry import Geometry


@dataclass
class ToyRequest:
    """`planned` counts output tokens that steps made so far sample; `output` has those answered."""

    request_id: str
    prompt: list[int]
    count: int
    temperature: float = 0.0
    seed: int = 0
    output: list[int] = field(default_factory=list)
    planned: int = 0
    computed: int = 0
    row: int | None = None
    blocks: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return len(self.prompt) + self.planned

    @property
    def done(self) -> bool:
        return self.planned == self.count


@dataclass
class ToyScheduler:
    geometry: Geometry
    incarnation: int
    rng: random.Random
    max_chunk: int = 9
    preempt_chance: float = 0.1

    def __post_init__(self) -> None:
        self.waiting: list[ToyRequest] = []
        self.running: list[ToyRequest] = []
        self.step_id = 0
        self._free_blocks = list(range(1, self.geometry.num_blocks))
        self._free_rows = list(range(self.geometry.max_rows))
        self._to_free: list[int] = []
        self._in_flight: dict[int, list[ToyRequest]] = {}

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def plan(self) -> StepPlan:
        """The next step: some rows, in random order, with a token or a chunk each."""
        self._retire()
        new = self._admit()
        self.step_id += 1
        tables: list[tuple[int, list[int]]] = []
        sequences: list[tuple[ToyRequest, int]] = []
        budget = self.geometry.max_step_tokens
        for request in self.rng.sample(self.running, len(self.running)):
            room = min(request.known - request.computed, self.max_chunk, budget)
            if room < 1 or self.rng.random() < 0.2:
                continue
            length = self.rng.randint(1, room)
            blocks = self._grow(request, request.computed + length)
            if blocks is None:
                continue
            if blocks:
                tables.append((request.row or 0, blocks))
            budget -= length
            sequences.append((request, length))
        return self._step(new, tables, sequences)

    def answer(self, step_id: int, tokens: np.ndarray) -> None:
        for request, token in zip(self._in_flight.pop(step_id), tokens.tolist(), strict=True):
            request.output.append(token)

    def _retire(self) -> None:
        """Frees the rows of requests that are done, and of a few that begin again."""
        for request in list(self.running):
            # A resume needs the values of all its tokens.
            answered = len(request.output) == request.planned
            if request.done or (answered and self.rng.random() < self.preempt_chance):
                self.running.remove(request)
                self._to_free.append(request.row or 0)
                self._free_rows.append(request.row or 0)
                self._free_blocks += request.blocks
                request.row, request.blocks, request.computed = None, [], 0
                if not request.done:
                    self.waiting.append(request)
        self.rng.shuffle(self._free_blocks)
        self.rng.shuffle(self._free_rows)

    def _admit(self) -> list[NewRow]:
        new = []
        while self.waiting and self._free_rows and self.rng.random() < 0.7:
            request = self.waiting.pop(0)
            request.row = self._free_rows.pop()
            first = self._free_blocks.pop() if self._free_blocks and self.rng.random() < 0.5 else 0
            request.blocks = [first] if first else []
            self.running.append(request)
            new.append(
                NewRow(
                    row=request.row,
                    request_id=request.request_id,
                    token_ids=np.array(request.prompt + request.output, np.int32),
                    prompt_len=len(request.prompt),
                    block_ids=np.array(request.blocks, np.int32),
                    temperature=request.temperature,
                    seed=request.seed,
                )
            )
        return new

    def _grow(self, request: ToyRequest, tokens: int) -> list[int] | None:
        need = -(-tokens // self.geometry.block_size) - len(request.blocks)
        if need > len(self._free_blocks):
            return None
        blocks = [self._free_blocks.pop() for _ in range(need)]
        request.blocks += blocks
        return blocks

    def _step(
        self,
        new: list[NewRow],
        tables: list[tuple[int, list[int]]],
        sequences: list[tuple[ToyRequest, int]],
    ) -> StepPlan:
        size = self.geometry.block_size
        slots, samples, sampling = [], [], []
        for request, length in sequences:
            for position in range(request.computed, request.computed + length):
                slots.append(request.blocks[position // size] * size + position % size)
            request.computed += length
            samples.append(request.computed == request.known)
            if samples[-1]:
                request.planned += 1
                sampling.append(request)
        self._in_flight[self.step_id] = sampling
        freed, self._to_free = self._to_free, []
        return StepPlan(
            step_id=self.step_id,
            incarnation=self.incarnation,
            free_rows=np.array(freed, np.int32),
            new_rows=new,
            table_rows=np.array([row for row, _ in tables], np.int32),
            table_counts=np.array([len(blocks) for _, blocks in tables], np.int32),
            table_blocks=np.array([b for _, blocks in tables for b in blocks], np.int32),
            rows=np.array([request.row for request, _ in sequences], np.int32),
            query_lens=np.array([length for _, length in sequences], np.int32),
            context_lens=np.array([request.computed for request, _ in sequences], np.int32),
            slot_mapping=np.array(slots, np.int64),
            samples=np.array(samples, bool),
        )


def random_requests(
    rng: random.Random, count: int, vocab_size: int, most_tokens: int
) -> list[ToyRequest]:
    """Requests that fit a model of `most_tokens`; half of them have a temperature and a seed."""
    requests = []
    for i in range(count):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, most_tokens // 2))]
        outputs = rng.randint(1, most_tokens - len(prompt))
        temperature = rng.choice([0.0, 0.8])
        requests.append(
            ToyRequest(f"request-{i}", prompt, outputs, temperature, rng.getrandbits(64))
        )
    return requests
