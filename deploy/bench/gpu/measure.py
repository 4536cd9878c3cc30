"""The measurements of one model, against a scheduler that serves it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from deploy.bench.batch import Batch
from deploy.bench.bursts import Bursts
from deploy.bench.floor import ModelSize, Rates, decode_floor, prompts_floor, served_floor
from deploy.bench.gpu.rows import Row
from deploy.loadtest.plan import Mixed512
from deploy.loadtest.workload import mixed512

PREFILL = (16, 2048)  # prompts, and the length of each
_MIXED = 512  # requests
# Of the first token of a prompt alone: prompts before, for a server that has served for a while
# (a start's first ones take up to half as long again), and of each repetition.
_WARM_UP_PROMPTS = 50
_PROMPTS_IN_TURN = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is asked for. `clients`: processes, of which a batch takes no more than streams."""

    streams: tuple[int, ...]
    prompt: int
    output: int
    repetitions: int
    clients: int

    def __post_init__(self) -> None:
        for name in ("prompt", "repetitions", "clients"):
            _at_least(name, getattr(self, name), 1)
        _at_least("output", self.output, 2)
        for streams in self.streams:
            _at_least("streams", streams, 1)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"--{name} is {value}, must be at least {least}")


@dataclass(frozen=True, slots=True)
class ModelRows:
    """Of the model `shape`, whose `size` and vocabulary are its config.json's."""

    shape: str
    size: ModelSize
    vocab_size: int
    rates: Rates
    sizes: Sizes
    show: Callable[[str], None]  # what is going on

    def decode(self, address: str, streams: Sequence[int], repeated: int = 1) -> Iterator[Row]:
        """Milliseconds of a token of each: (T(output) - T(1)) / (output - 1). `repeated`: most
        decodes in one step, as the scheduler was told."""
        text = f", k to {repeated}" if repeated > 1 else ""
        for number in streams:
            self.show(f"{self.shape}: decode, batch {number}")
            steps, gaps = self.steps(address, number)
            context = self.sizes.prompt + self.sizes.output / 2
            yield Row(
                self.decode_key(number, repeated),
                f"{self.shape.upper()} decode step, batch {number}{text}",
                "ms",
                tuple(1e3 * step for step in steps),
                1e3 * decode_floor(self.rates, self.size, number, context),
                1e3 * float(np.percentile(gaps, 99)),
            )

    def decode_key(self, streams: int, repeated: int = 1) -> str:
        return f"{self.shape} decode {streams}" + (f" k{repeated}" if repeated > 1 else "")

    def steps(self, address: str, streams: int) -> tuple[list[float], np.ndarray]:
        """Seconds of a step in each repetition, and before each token of all."""
        sizes = self.sizes
        batch = Batch(streams, sizes.prompt, self.vocab_size, streams, sizes.clients)
        steps, gaps = [], []
        with ExitStack() as stack:
            one, whole = (
                stack.enter_context(batch.bursts(address, tokens)) for tokens in (1, sizes.output)
            )
            whole.send()  # a warm-up
            for _ in range(sizes.repetitions):
                first = one.send()
                times = whole.send()
                steps.append((times.end - first.end) / (sizes.output - 1))
                gaps.append(times.gaps)
        return steps, np.concatenate(gaps)

    def mixed(self, address: str) -> Row:
        """Output tokens a second of the load tool's mixed512."""
        prompts, outputs = mixed512()
        floor = served_floor(self.rates, self.size, [len(prompt) for prompt in prompts], outputs)
        rates, gaps = [], []
        with Bursts(
            address,
            Mixed512(),
            _MIXED,
            vocab_size=self.vocab_size,
            processes=self.sizes.clients,
        ) as bursts:
            for number in range(self.sizes.repetitions):
                self.show(f"{self.shape}: mixed512, {number + 1} of {self.sizes.repetitions}")
                times = bursts.send()
                rates.append(times.tokens / times.end)
                gaps.append(times.gaps)
        return Row(
            f"{self.shape} mixed512",
            f"{self.shape.upper()} mixed512, output",
            "tok/s",
            tuple(rates),
            float(outputs.sum()) / floor,
            1e3 * float(np.percentile(np.concatenate(gaps), 99)),
        )

    def prefill(self, address: str) -> Row:
        """Prompt tokens a second until each prompt has its first token."""
        self.show(f"{self.shape}: prefill")
        count, length = PREFILL
        batch = Batch(count, length, self.vocab_size, length, self.sizes.clients)
        with batch.bursts(address, 1) as bursts:
            bursts.send()
            seconds = [max(bursts.send().first_tokens) for _ in range(self.sizes.repetitions)]
        floor = prompts_floor(self.rates, self.size, [length] * count)
        return Row(
            f"{self.shape} prefill",
            f"{self.shape.upper()} prefill {count} x {length}",
            "tok/s",
            tuple(count * length / taken for taken in seconds),
            count * length / floor,
        )

    def first_token(self, address: str, frontends: int = 0) -> Row:
        """Milliseconds of one prompt alone, sent when the one before has its token, by one user
        over one connection: of several front ends he has one. `frontends`: of the scheduler."""
        self.show(f"{self.shape}: first token")
        length = self.sizes.prompt
        user = Batch(1, length, self.vocab_size, length, connections=1)
        with user.bursts(address, 1) as bursts:
            bursts.send_in_turn(_WARM_UP_PROMPTS)
            turns = bursts.send_in_turn(_PROMPTS_IN_TURN * self.sizes.repetitions)
        key, title = "first token", f"first token, prompt {length}"
        if frontends:
            key, title = f"{key} {frontends} frontends", f"{title}, {frontends} FEs"
        return Row(
            f"{self.shape} {key}",
            f"{self.shape.upper()} {title}",
            "ms",
            tuple(1e3 * turn.first_tokens[0] for turn in turns),
            1e3 * prompts_floor(self.rates, self.size, [length]),
        )

    def text(self, with_text: Sequence[float], ids: Sequence[float], streams: int) -> Row:
        """Throughput with text in percent of that with ids alone, from steps of both."""
        return Row(
            f"{self.shape} text",
            f"{self.shape.upper()} {streams} text streams, of ids' rate",
            "%",
            tuple(100 * statistics.median(ids) / step for step in with_text),
        )
