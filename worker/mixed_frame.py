"""What captured graphs read of a step with prompt chunks, at one place on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from worker.batch import StepBatch

NO_SEQUENCE = -1  # a decode's context length where there is none
PAD_POSITION = 1  # of the scratch row, where the draws of pads go

Words = TypeVar("Words", np.ndarray, torch.Tensor)


@dataclass(frozen=True, slots=True)
class MixedFrame(Generic[Words]):
    """Views of the same bytes, for up to R sequences, C of them chunks, and t tokens. Slots int64,
    the others int32."""

    rows: Words  # [R]
    context_lens: Words  # [R]
    query_starts: Words  # [R + 1]
    decode_context_lens: Words  # [R]
    chunk_rows: Words  # [C]
    chunk_context_lens: Words  # [C]
    chunk_starts: Words  # [C + 1]
    sample_tokens: Words  # [R]
    sample_rows: Words  # [R]
    sample_positions: Words  # [R]
    slots: Words  # [t]

    @staticmethod
    def at(words: Words, rows: int, chunks: int) -> MixedFrame[Words]:
        """The frame in `words`, int32, on the host or the device."""
        sizes = (rows, rows, rows + 1, rows, chunks, chunks, chunks + 1, rows, rows, rows)
        views, start = [], 0
        for size in sizes:
            views.append(words[start : start + size])
            start += size
        start += start % 2
        int64 = torch.int64 if isinstance(words, torch.Tensor) else np.int64
        return MixedFrame(*views, words[start:].view(int64))

    @staticmethod
    def num_words(rows: int, chunks: int, tokens: int) -> int:
        """int32 words of a frame, with one to align the slots."""
        return 7 * rows + 3 * chunks + 2 + (rows + chunks) % 2 + 2 * tokens


def pack_mixed(
    batch: StepBatch, rows: int, chunks: int, tokens: int, scratch_row: int
) -> np.ndarray:
    """int32 [words]: the frame of a step. Its pads are decodes and chunks of nothing, tokens of no
    sequence, which go to the scratch block, and draws for the scratch row."""
    words = np.zeros(MixedFrame.num_words(rows, chunks, tokens), np.int32)
    frame = MixedFrame.at(words, rows, chunks)
    sequences, decodes = len(batch.rows), batch.num_decodes
    count, sampled = sequences - decodes, len(batch.sample_rows)
    used = batch.slots.shape[1]
    frame.rows[:sequences] = batch.rows
    frame.context_lens[:sequences] = batch.context_lens
    frame.query_starts[: sequences + 1] = batch.query_starts
    frame.query_starts[sequences + 1 :] = used
    frame.decode_context_lens[:decodes] = batch.context_lens[:decodes]
    frame.decode_context_lens[decodes:] = NO_SEQUENCE
    frame.chunk_rows[:count] = batch.rows[decodes:]
    frame.chunk_context_lens[:count] = batch.context_lens[decodes:]
    frame.chunk_starts[: count + 1] = batch.query_starts[decodes:]
    frame.chunk_starts[count + 1 :] = used
    frame.sample_tokens[:sampled] = batch.sample_tokens
    frame.sample_rows[:sampled] = batch.sample_rows
    frame.sample_rows[sampled:] = scratch_row
    frame.sample_positions[:sampled] = batch.sample_positions
    frame.sample_positions[sampled:] = PAD_POSITION
    frame.slots[:used] = batch.slots[0]
    return words
