"""Penalties of the CPU face, compiled: each line is an item."""

from typing import Any

import numpy as np
import torch
from numba import carray

from kernels.compiled import address, inner, kernel, launch, pointer, take
from kernels.cpu_numbers import KINDS, floats, size_of, widen


def penalize(
    logits: torch.Tensor,
    lines: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    prompt_lens: torch.Tensor,
    penalties: torch.Tensor,
    *,
    max_position: int,  # noqa: ARG001 - a launch bound of other faces
) -> torch.Tensor:
    """See `kernels.reference.penalize`."""
    count, vocab = lines.shape[0], logits.shape[1]
    scores = torch.empty((count, vocab), dtype=torch.float32)
    launch(
        _penalize,
        count,
        count * vocab,
        vocab,
        KINDS[logits.dtype],
        address(logits, logits.dtype),
        address(lines, torch.int64),
        address(rows, torch.int32),
        address(positions, torch.int32),
        address(tokens, torch.int32),
        tokens.shape[1],
        address(prompt_lens, torch.int32),
        address(penalties, torch.float32),
        address(scores, torch.float32),
    )
    return scores


@kernel
def _penalize(arguments: Any) -> None:
    count, vocab, kind, logits = arguments[1], arguments[2], arguments[3], arguments[4]
    lines = carray(pointer(arguments[5]), (count,), np.int64)
    rows = carray(pointer(arguments[6]), (count,), np.int32)
    positions = carray(pointer(arguments[7]), (count,), np.int32)
    times = np.zeros(vocab, np.int32)  # that a token was met in the line at work
    while True:
        item = take(arguments)
        if item >= count:
            return
        row, scores = np.int64(rows[item]), floats(arguments[12] + 4 * item * vocab, vocab)
        widen(logits + lines[item] * vocab * size_of(kind), kind, vocab, scores.ctypes.data)
        at = arguments[8] + 4 * row * arguments[9]
        known = carray(pointer(at), (np.int64(positions[item]),), np.int32)
        prompt_len = carray(pointer(arguments[10]), (row + 1,), np.int32)[row]
        _lower(scores, known, prompt_len, floats(arguments[11] + 12 * row, 3), times)


@inner
def _lower(
    scores: np.ndarray, known: np.ndarray, prompt_len: int, penalties: np.ndarray, times: np.ndarray
) -> None:
    """`times` is all zeros, before and after."""
    repetition, frequency, presence = penalties[0], penalties[1], penalties[2]
    for token in known:
        if times[token] == 0:
            value = scores[token]
            scores[token] = value / repetition if value > 0 else value * repetition
            times[token] = 1
    output = known[prompt_len:]
    for token in output:
        times[token] += 1
    for token in output:
        if times[token] > 1:
            lowered = scores[token] - np.float32(times[token] - 1) * frequency
            scores[token] = lowered - presence
            times[token] = 1
    for token in known:
        times[token] = 0
