"""The requests of a plan: each a function of the plan's seed and its own index alone, so
that any process can make any of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deploy.loadtest.lengths import Fixed
from deploy.loadtest.plan import Content, LoadPlan, Mixed512
from deploy.loadtest.trace import TraceLine, read_trace

# First part of the key of each random stream of a seed.
_MEASURED, _WARM_UP, _PREFIXES, _ARRIVALS = range(4)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as planned. With `turn` > 0 the prompt is only the turn's own part."""

    index: int  # negative: a warm-up request
    prompt: tuple[int, ...] | str
    prompt_len: int  # as planned: tokens, or words of a text
    output_len: int  # max_tokens
    cancel_after: int | None  # tokens after which it is cancelled; 0: right after sending
    is_slow: bool
    seed: int  # of sampling
    turn: int  # in its conversation
    group: str


class Workload:
    """Raises OSError and ValueError for files that cannot be read."""

    def __init__(self, plan: LoadPlan, vocab_size: int) -> None:
        self._plan = plan
        self._vocab_size = vocab_size
        content = plan.content
        self._content = content if isinstance(content, Content) else None
        self._mixed = mixed512() if isinstance(content, Mixed512) else None
        self.trace: tuple[TraceLine, ...] = ()
        self._words: list[str] = []
        if self._content and self._content.trace:
            self.trace = read_trace(self._content.trace)
        if self._content and self._content.text:
            self._words = self._content.text.read_text(encoding="utf-8").split()
            if not self._words:
                raise ValueError(f"{self._content.text} has no words")
        self._prefixes = self._make_prefixes()

    def arrival_seed(self, stage: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._plan.seed, spawn_key=(_ARRIVALS, stage))

    def request(self, index: int) -> Request:
        plan = self._plan
        rng = self._rng(*((_MEASURED, index) if index >= 0 else (_WARM_UP, -index)))
        prompt_len, output_len, group = self._lengths(index, rng)
        # Every number is drawn, wanted or not: a share changes only what it is a share of.
        cancels, cut, slows, prefix = rng.random(4)
        seed = int(rng.integers(2**63))
        turn = index % plan.turns if index >= 0 else 0
        prompt = self._prompt(index, prompt_len, rng)
        if self._prefixes and turn == 0:
            chosen = self._prefixes[int(prefix * len(self._prefixes))]
            prompt = f"{chosen} {prompt}" if isinstance(prompt, str) else chosen + prompt
            prompt_len += self._content.prefix if self._content else 0
        return Request(
            index=index,
            prompt=prompt,
            prompt_len=prompt_len,
            output_len=output_len,
            cancel_after=int(cut * output_len) if cancels < plan.cancel_share else None,
            is_slow=bool(slows < plan.slow_share),
            seed=seed,
            turn=turn,
            group=group,
        )

    def _lengths(self, index: int, rng: np.random.Generator) -> tuple[int, int, str]:
        if self._mixed:
            prompts, outputs = self._mixed
            return len(prompts[index % 512]), int(outputs[index % 512]), ""
        if self.trace:
            line = self.trace[index % len(self.trace)]
            return line.prompt_len, line.output_len, line.group
        content = self._content or Content(Fixed(1), Fixed(1))
        return content.prompt.draw(rng), content.output.draw(rng), ""

    def _prompt(self, index: int, length: int, rng: np.random.Generator) -> tuple[int, ...] | str:
        if self._mixed and index >= 0:
            return tuple((self._mixed[0][index % 512] % self._vocab_size).tolist())
        return self._draw(length, rng)

    def _draw(self, length: int, rng: np.random.Generator) -> tuple[int, ...] | str:
        """`length` random ids, or words from a random place of the text on."""
        if not self._words:
            return tuple(rng.integers(0, self._vocab_size, length).tolist())
        start = int(rng.integers(len(self._words)))
        return " ".join(self._words[(start + i) % len(self._words)] for i in range(length))

    def _make_prefixes(self) -> list:
        content = self._content
        if content is None or content.prefix == 0:
            return []
        keys = range(content.prefixes)
        return [self._draw(content.prefix, self._rng(_PREFIXES, key)) for key in keys]

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self._plan.seed, spawn_key=key))


def mixed512() -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Prompts, and output lengths [512]: the workload by which servers are compared."""
    rng = np.random.default_rng(0)
    prompt_lens = rng.integers(64, 1025, 512)
    output_lens = rng.integers(16, 513, 512)
    return [rng.integers(0, 128_000, length) for length in prompt_lens], output_lens
