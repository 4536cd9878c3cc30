"""The requests of a soak: what is asked, how the client behaves, and what must come of it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

# Ids that the simulated worker dies or hangs of, and never draws.
CRASH_ID, HANG_ID = 998, 999
VOCAB = 1000

_TEXTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "1 2 3 4 5 6",
    "Water boils at a temperature of",
    "The three primary colours are",
    "def fibonacci(n):",
)
_DISTINCT_PROMPTS = 64
# Weights, by behaviour.
_BEHAVIOURS = {"read": 60, "cancel": 12, "deadline": 10, "slow": 8, "malformed": 8}
_MALFORMED: tuple[Mapping[str, object], ...] = (
    {"token_ids": []},
    {"token_ids": [VOCAB * 1000]},
    {"token_ids": [-1]},
    {"max_tokens": 0},
    {"max_tokens": 10**9},
    {"temperature": math.nan},
    {"temperature": -1.0},
    {"stop_token_ids": [-5]},
    {"stop": [""]},
)


@dataclass(frozen=True, slots=True)
class Question:
    """One request. `behaviour`: "read" to the end; "cancel" after `cancel_after` tokens;
    "deadline" of `timeout` seconds; "slow", which waits between reads; "malformed", "crash" and
    "hang", which the server must refuse or fail."""

    index: int
    behaviour: str
    options: dict[str, object] = field(default_factory=dict)
    cancel_after: int = 0
    timeout: float | None = None

    @property
    def key(self) -> str:
        """The same for questions that have the same answer."""
        return repr(sorted((k, v) for k, v in self.options.items() if k != "request_id"))


class SimulatedQuestions:
    """Random ids for the simulated worker. One in `poison_every` crashes it or hangs it."""

    def __init__(self, seed: int, poison_every: int) -> None:
        self._seed = seed
        self._poison_every = poison_every

    def question(self, index: int) -> Question:
        rng = random.Random(f"question {self._seed} {index}")
        prompt = [rng.randrange(VOCAB - 2) for _ in range(rng.randint(1, 120))]
        options: dict[str, object] = {
            "token_ids": prompt,
            "max_tokens": rng.randint(1, 150),
            "temperature": rng.choice([0.0, 0.8]),
            "seed": rng.randrange(2**31),
        }
        if index % self._poison_every == self._poison_every - 1:
            behaviour, poison = rng.choice([("crash", CRASH_ID), ("hang", HANG_ID)])
            options["token_ids"] = [*prompt, poison]
            return Question(index, behaviour, options)
        return _behave(rng, index, options)


class TextQuestions:
    """Few texts with few settings for a real model, each asked many times."""

    def __init__(self, seed: int, max_tokens: int) -> None:
        self._seed = seed
        self._max_tokens = max_tokens

    def distinct(self) -> list[Question]:
        """Every question that `question` may ask, to be read to its end."""
        settings = [{"temperature": 0.0}, {"temperature": 0.8, "seed": 11}]
        asked = [
            {"prompt": text, "max_tokens": self._max_tokens, **setting}
            for text in _TEXTS
            for setting in settings
        ]
        asked += [{**options, "stop": [" a", "\n"]} for options in asked[::4]]
        return [Question(-1 - i, "read", options) for i, options in enumerate(asked)]

    def question(self, index: int) -> Question:
        rng = random.Random(f"question {self._seed} {index}")
        return _behave(rng, index, dict(rng.choice(self.distinct()).options))


class IdQuestions:
    """As TextQuestions, of random ids for a model without a tokenizer."""

    def __init__(self, seed: int, vocab_size: int, prompt_len: int, max_tokens: int) -> None:
        rng = random.Random(f"prompts {seed}")
        self._seed = seed
        self._distinct = [
            Question(
                -1 - i,
                "read",
                {
                    "token_ids": [rng.randrange(vocab_size) for _ in range(prompt_len)],
                    "max_tokens": max_tokens,
                    "temperature": 0.8 if i % 2 else 0.0,
                    "seed": i,
                    "ignore_eos": True,
                },
            )
            for i in range(_DISTINCT_PROMPTS)
        ]

    def distinct(self) -> list[Question]:
        return self._distinct

    def question(self, index: int) -> Question:
        rng = random.Random(f"question {self._seed} {index}")
        return _behave(rng, index, dict(rng.choice(self._distinct).options))


def _behave(rng: random.Random, index: int, options: dict[str, object]) -> Question:
    behaviour = rng.choices(list(_BEHAVIOURS), list(_BEHAVIOURS.values()))[0]
    if behaviour == "malformed":
        wrong = rng.choice(_MALFORMED)
        if "token_ids" in wrong:
            options.pop("prompt", None)
        return Question(index, behaviour, {**options, **wrong})
    return Question(
        index,
        behaviour,
        options,
        cancel_after=rng.randint(0, 40) if behaviour == "cancel" else 0,
        timeout=rng.uniform(0.05, 4.0) if behaviour == "deadline" else None,
    )
