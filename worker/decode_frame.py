"""What a captured decode reads of a step, at one place on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from worker.batch import StepBatch

_PAD_CONTEXT = 1  # the shortest, over the first slot of the scratch block


@dataclass(frozen=True, slots=True)
class DecodeFrame:
    """Views of the same bytes, for up to n sequences."""

    words: torch.Tensor  # int64 [2 n], all of it
    slots: torch.Tensor  # int64 [n]
    rows: torch.Tensor  # int32 [n]
    context_lens: torch.Tensor  # int32 [n]

    @staticmethod
    def at(place: torch.Tensor, count: int) -> DecodeFrame:
        """A frame of `count` sequences at the start of `place`, bytes."""
        words = place[: 16 * count].view(torch.int64)
        rows, context_lens = words[count:].view(torch.int32).split(count)
        return DecodeFrame(words, words[:count], rows, context_lens)


def pack_frames(batch: StepBatch, count: int, scratch_row: int) -> np.ndarray:
    """int64 [k, 2 count]: a frame for each repetition of a step of decodes.

    What the step leaves free is pads: they read and write the scratch row and block alone.
    """
    sequences = len(batch.rows)
    frames = np.zeros((len(batch.slots), 2 * count), np.int64)
    frames[:, :sequences] = batch.slots
    columns = frames[:, count:].view(np.int32)
    rows, context_lens = columns[:, :count], columns[:, count:]
    rows[:, :sequences] = batch.rows
    rows[:, sequences:] = scratch_row
    context_lens[:, :sequences] = batch.context_lens
    context_lens[:, :sequences] += np.arange(len(frames), dtype=np.int32)[:, None]
    context_lens[:, sequences:] = _PAD_CONTEXT
    return frames
