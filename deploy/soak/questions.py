"""The requests of a soak: what is asked, how the client behaves, and what must come of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# Ids that the simulated worker dies or hangs of, and never draws.
CRASH_ID, HANG_ID = 998, 999
VOCAB = 1000

_PREAMBLE = (
    "The lighthouse stood at the end of a long and narrow spit of sand, which the sea covered "
    "twice a day, so that whoever wanted to visit its keeper had to know the hours of the tide by "
    "heart. The keeper was an old man who had once been a sailor, and who told everybody that came "
    "the same three stories: of the whale that followed his ship for a week, of the captain who "
    "could smell a storm, and of the island that was on no map. Nobody believed him, but all came "
    "back, for he told them well, and in the evening, when the lamp was lit and the wind rose, "
)
_TEXTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "1 2 3 4 5 6",
    "Water boils at a temperature of",
    "The three primary colours are",
    "def fibonacci(n):",
    # Long ones that begin alike: computed in several steps, and from blocks that were shared.
    _PREAMBLE + "he began with the whale:",
    _PREAMBLE + "the children asked for the island, and",
)
_ALL_EXTRAS = {
    **{"repetition_penalty": 1.3, "frequency_penalty": 0.25, "presence_penalty": 0.5},
    "top_logprobs": 3,
}
_DISTINCT_PROMPTS = 64
_SHARED_PREFIXES = 6
# Weights, by behaviour.
_BEHAVIOURS = {
    **{"read": 60, "cancel": 12, "deadline": 10},
    **{"slow": 6, "silent": 2, "malformed": 8},
}
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
    {"repetition_penalty": 0.0},
    {"frequency_penalty": math.nan},
    {"presence_penalty": 2.5},
    {"top_logprobs": 10**6},
)
PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True, slots=True)
class Question:
    """One request. `behaviour`: "read" to the end; "cancel" after `cancel_after` tokens;
    "deadline" of `timeout` seconds; "slow", which waits between reads; "silent", which stops
    reading for a while; "malformed", "crash" and "hang", which the server must refuse or fail."""

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
    """Random ids for the simulated worker, half of them after one of a few beginnings. One in
    `poison_every` crashes it or hangs it, of those asked before `poison_until` seconds."""

    def __init__(self, seed: int, poison_every: int, poison_until: float = math.inf) -> None:
        rng = random.Random(f"prefixes {seed}")
        self._seed = seed
        self._poison_every = poison_every
        self._poison_until = poison_until
        self._prefixes = [_random_ids(rng, rng.randint(16, 120)) for _ in range(_SHARED_PREFIXES)]

    def question(self, index: int, at: float) -> Question:
        """`at`: seconds since the beginning."""
        rng = random.Random(f"question {self._seed} {index}")
        prompt = rng.choice(self._prefixes) if rng.random() < 0.5 else []
        prompt = [*prompt, *_random_ids(rng, rng.randint(1, 120))]
        options: dict[str, object] = {
            "token_ids": prompt,
            "max_tokens": rng.randint(1, 150),
            "temperature": rng.choice([0.0, 0.8]),
            "seed": rng.randrange(2**31),
        }
        options |= _extras(random.Random(f"extras {self._seed} {index}"))
        if index % self._poison_every == self._poison_every - 1 and at < self._poison_until:
            behaviour, poison = rng.choice([("crash", CRASH_ID), ("hang", HANG_ID)])
            options["token_ids"] = [*prompt, poison]
            return Question(index, behaviour, options)
        return _behave(rng, index, options)


def _random_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCAB - 2) for _ in range(count)]


def _extras(rng: random.Random) -> dict[str, object]:
    """Penalties for half of the requests, log-probabilities for half."""
    extras: dict[str, object] = {}
    if rng.random() < 0.5:
        values = (rng.uniform(0.8, 1.5), rng.uniform(-0.5, 1.0), rng.uniform(-0.5, 1.0))
        extras |= {name: round(value, 2) for name, value in zip(PENALTIES, values, strict=True)}
    if rng.random() < 0.5:
        extras["top_logprobs"] = rng.choice([0, 1, 5])
    return extras


class TextQuestions:
    """Few texts with few settings for a real model, each asked many times; every second text
    with penalties and log-probabilities. Outputs are of a third of `max_tokens` up to all of
    them."""

    def __init__(self, seed: int, max_tokens: int) -> None:
        rng = random.Random(f"texts {seed}")
        self._seed = seed
        settings = [{"temperature": 0.0}, {"temperature": 0.8, "seed": 11}]
        self._distinct = [
            {
                "prompt": text,
                "max_tokens": rng.randint(-(-max_tokens // 3), max_tokens),
                **setting,
                **(_ALL_EXTRAS if i % 2 else {}),
            }
            for i, text in enumerate(_TEXTS)
            for setting in settings
        ]

    def distinct(self) -> list[Question]:
        """Every question that `question` may ask, to be read to its end."""
        return [Question(-1 - i, "read", options) for i, options in enumerate(self._distinct)]

    def add_stops(self, text_of: Callable[[Question], str]) -> list[Question]:
        """More of them, with stop strings made of the answers to every second one, and so long
        that they are half matched most of the time: the middle of the answer, which ends it, and
        its rest with another end, which does not. Returns those added."""
        before = self.distinct()
        for question in before[::2]:
            text = text_of(question)
            third = len(text) // 3
            for stop in (text[third : 2 * third], text[1:] + "!?"):
                if stop:
                    self._distinct.append({**question.options, "stop": [stop]})
        return self.distinct()[len(before) :]

    def question(self, index: int, at: float) -> Question:  # noqa: ARG002
        """`at`: seconds since the beginning."""
        rng = random.Random(f"question {self._seed} {index}")
        return _behave(rng, index, dict(rng.choice(self._distinct)))


class IdQuestions:
    """As TextQuestions, of random ids, all as long as they may be. Half of them with penalties
    and log-probabilities."""

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
                    **(_ALL_EXTRAS if i % 4 >= 2 else {}),
                },
            )
            for i in range(_DISTINCT_PROMPTS)
        ]

    def distinct(self) -> list[Question]:
        return self._distinct

    def question(self, index: int, at: float) -> Question:  # noqa: ARG002
        """`at`: seconds since the beginning."""
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
