"""The log-probabilities of one output, between the engine's events and the client's reads."""

from __future__ import annotations

import numpy as np

from nanoserve.v1 import inference_pb2
from scheduler.core.logprobs import TokenLogprobs

# Bytes of a message, as of a text's.
LONGEST = 1 << 20
# On the wire, at most: a token's id, its own log-probability and the framing of both; and each of
# the most likely ones.
_TOKEN_BYTES, _TOP_BYTES = 13, 13


class OutputLogprobs:
    """A queue of tokens' log-probabilities: a token takes 8 bytes for itself and for each of the
    `top` most likely ones."""

    def __init__(self, top: int) -> None:
        self.most_at_a_time = LONGEST // (_TOKEN_BYTES + top * _TOP_BYTES)
        self._width = 1 + top
        self._ids = bytearray()
        self._values = bytearray()

    def push(self, logprobs: TokenLogprobs | None) -> None:
        """Those of one more token. Raises ValueError if there are none, or not as many as were
        asked for."""
        ids, values = logprobs or (b"", b"")
        if len(ids) != 4 * self._width:
            raise ValueError(
                f"a token came with {len(ids) // 4} log-probabilities, must be {self._width}"
            )
        self._ids += ids
        self._values += values

    def take(self, count: int) -> list[inference_pb2.TokenLogprobs]:
        """Those of the first `count` tokens, which leave the queue."""
        size, shape = 4 * self._width * count, (count, self._width)
        ids = np.frombuffer(self._ids[:size], np.int32).reshape(shape).tolist()
        values = np.frombuffer(self._values[:size], np.float32).reshape(shape).tolist()
        del self._ids[:size], self._values[:size]
        return [_message(*one) for one in zip(ids, values, strict=True)]


def _message(ids: list[int], values: list[float]) -> inference_pb2.TokenLogprobs:
    """The first is the token's own, the others are the most likely ones."""
    top = [
        inference_pb2.TopLogprob(token_id=token_id, logprob=value)
        for token_id, value in zip(ids[1:], values[1:], strict=True)
    ]
    return inference_pb2.TokenLogprobs(logprob=values[0], top=top)
