"""Penalties and log-probabilities for the requests of a toy scheduler, and what comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from nanoserve.v1 import worker_pb2
from tests.player import Player
from worker.executor import StepOutput
from worker.model.llama import Llama

# What a request asks for, by its number; half of them have a temperature too.
_ASKED: tuple[dict[str, float], ...] = (
    {"repetition_penalty": 1.5, "top_logprobs": 0},
    {},
    {"presence_penalty": 2.0, "frequency_penalty": -0.5, "top_logprobs": 7},
    {"top_logprobs": 20},
    {"repetition_penalty": 0.5, "frequency_penalty": 1.25},
    {"repetition_penalty": 1.0, "top_logprobs": 3},
)

Pairs = list[tuple[int, float]]


def asked_of(request_id: str) -> dict[str, float]:
    return _ASKED[int(request_id.rsplit("-")[-1]) % len(_ASKED)]


def penalties_of(request_id: str) -> dict[str, float]:
    return {name: value for name, value in asked_of(request_id).items() if name != "top_logprobs"}


def ask(step: worker_pb2.Step) -> worker_pb2.Step:
    """The step, whose new rows ask for what is theirs."""
    for new_row in step.new_rows:
        for name, value in asked_of(new_row.request_id).items():
            setattr(new_row if name == "top_logprobs" else new_row.sampling, name, value)
    return step


@dataclass
class Logged:
    """The log-probabilities that came with each request's tokens, in their order."""

    of: dict[str, list[Pairs]] = field(default_factory=dict)

    def take(self, output: StepOutput, request_ids: Sequence[str]) -> None:
        """Of a step that sampled for `request_ids`, none of them not finite."""
        wanted = [(i, x) for i, x in enumerate(request_ids) if "top_logprobs" in asked_of(x)]
        if (found := output.logprobs) is None:
            assert not wanted
            return
        assert found.samples.tolist() == [i for i, _ in wanted]
        assert found.counts.tolist() == [1 + asked_of(x)["top_logprobs"] for _, x in wanted]
        pairs = list(zip(found.ids.tolist(), found.values.tolist(), strict=True))
        for (i, request_id), count in zip(wanted, found.counts.tolist(), strict=True):
            assert pairs[0][0] == output.tokens[i]
            self.of.setdefault(request_id, []).append(pairs[:count])
            pairs = pairs[count:]
        assert not pairs


def penalized(
    logits: torch.Tensor,
    prompt: Sequence[int],
    output: Sequence[int],
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> torch.Tensor:
    """The rule of worker.proto, one token at a time."""
    scores, times = logits.clone(), Counter(output)
    for token in {*prompt, *output}:
        value = float(scores[token])
        value = value / repetition_penalty if value > 0 else value * repetition_penalty
        if times[token]:
            value -= times[token] * frequency_penalty + presence_penalty
        scores[token] = value
    return scores


def greedy_with_logprobs(
    model: Llama, prompt: Sequence[int], count: int, top: int, **penalties: float
) -> tuple[list[int], list[Pairs]]:
    """Tokens of a prompt alone, and of each, then of the `top` most likely ones, the
    log-probability, in float64."""
    player = Player(model, [len(prompt) + count])
    logits = player.step({0: prompt}, [len(prompt) - 1])[0].double()
    output: list[int] = []
    logged = []
    for _ in range(count):
        output.append(int(penalized(logits, prompt, output, **penalties).argmax()))
        exact = logits.log_softmax(-1).tolist()
        likely = sorted(range(len(exact)), key=lambda token: (-exact[token], token))[:top]
        logged.append([(token, exact[token]) for token in (output[-1], *likely)])
        logits = player.step({0: output[-1:]})[0].double()
    return output, logged


def assert_near(actual: Sequence[Pairs], wanted: Sequence[Pairs], limit: float = 1e-4) -> None:
    assert [[i for i, _ in pairs] for pairs in actual] == [[i for i, _ in x] for x in wanted]
    mine, theirs = (np.array([v for pairs in x for _, v in pairs]) for x in (actual, wanted))
    assert np.abs(mine - theirs).max() < limit
