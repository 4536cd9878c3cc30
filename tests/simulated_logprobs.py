"""The log-probabilities of the simulated worker as clients get them."""

from __future__ import annotations

from collections.abc import Sequence

from nanoserve import TokenLogprobs, TopLogprob
from worker.simulated_logprobs import expected_logprobs


def right_logprobs(
    prompt: Sequence[int], output: Sequence[int], vocab_size: int, top: int | None
) -> tuple[TokenLogprobs, ...]:
    """Of each token of an output; none if `top` is None."""
    if top is None:
        return ()
    return tuple(
        TokenLogprobs(own, tuple(TopLogprob(*likely) for likely in most_likely))
        for (_, own), *most_likely in expected_logprobs(prompt, output, vocab_size, top)
    )
