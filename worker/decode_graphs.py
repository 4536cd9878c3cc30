"""CUDA graphs of decode steps: forward and sampling, captured once for each of a few sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from worker.batch import StepBatch
from worker.borrowed_tensor import borrowed
from worker.captured_step import CapturedStep
from worker.decode_frame import DecodeFrame, pack_frames
from worker.graph_capture import GraphCapture
from worker.kv_pool import KVPool
from worker.model.llama import Llama
from worker.rows import Rows
from worker.sampler import sample
from worker.step_inputs import StepInputs

# 432: of 448 rows a library's product of the 8B shape takes twice as long as of 512 (H200).
_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, *range(128, 257, 32), 320, 384, 432, 512)
# Context tokens of all sequences together for which a graph has room. Beyond, reading their K/V
# takes longer than launching the kernels one by one.
MOST_CONTEXT = 1 << 21


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """The batch sizes captured for a worker of `max_rows` rows, rising; a batch of another size is
    padded to the next."""
    smaller = [size for size in _SIZES if size < max_rows]
    return (*smaller, max_rows) if max_rows <= _SIZES[-1] else tuple(smaller)


class DecodeGraphs:
    """Decode steps whose kernels are launched as one.

    A graph reads the step from `frame`, at the start of `landing` (bytes on the device), and is
    right for any context lengths. Pads belong to the scratch row and block.
    """

    def __init__(
        self,
        model: Llama,
        pool: KVPool,
        rows: Rows,
        landing: torch.Tensor,
        sizes: tuple[int, ...],
    ) -> None:
        self._model, self._pool, self._rows = model, pool, rows
        self.sizes = sizes
        self._most = sizes[-1]
        self.frame = DecodeFrame.at(landing, self._most)
        device = model.device
        self._starts = torch.arange(self._most + 1, dtype=torch.int32, device=device)
        self._sample_tokens = torch.arange(self._most, device=device)
        self._answers = torch.empty(self._most, dtype=torch.int32, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._logits: dict[int, torch.Tensor] = {}  # where a graph leaves them

    def size_for(self, batch: StepBatch) -> int | None:
        """The size of the graph that runs `batch`, or None: only decodes that all sample, not too
        many, and whose contexts are not too long."""
        sequences, repetitions = len(batch.rows), len(batch.slots)
        if not 0 < sequences == batch.num_decodes == len(batch.sample_rows) <= self._most:
            return None
        if batch.decode_context + sequences * (repetitions - 1) > MOST_CONTEXT:
            return None
        return self.sizes[bisect_left(self.sizes, sequences)]

    def step_of(self, batch: StepBatch) -> CapturedStep | None:
        """How to run `batch`, or None if it is not for these graphs."""
        if (size := self.size_for(batch)) is None:
            return None
        frames, place = self.pack(batch), self.frame.words
        return CapturedStep(frames, place, partial(self.replay, size), self._logits.get(size))

    def pack(self, batch: StepBatch) -> np.ndarray:
        """The frames of a step for which `size_for` gave a size, [k, words]."""
        return pack_frames(batch, self._most, self._rows.scratch)

    def replay(self, size: int) -> torch.Tensor:
        """Runs the step that `frame` holds; returns int32 [size or more], as `sample`, which the
        next replay overwrites."""
        self._graphs[size].replay()
        return self._answers

    def run(self, size: int) -> torch.Tensor:
        """The same as `replay`, kernel by kernel."""
        return self._run(size)[1]

    @torch.inference_mode()
    def _run(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and answers of the step that `frame` holds."""
        frame, ops = self.frame, self._model.ops
        rows, context_lens = frame.rows[:size], frame.context_lens[:size]
        starts = self._starts[: size + 1]
        token_ids, positions = ops.step_tokens(
            self._rows.tokens, rows, starts, context_lens, size, 1
        )
        most = self._rows.max_model_len
        inputs = StepInputs(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=frame.slots[:size],
            decode_rows=rows,
            decode_context_lens=context_lens,
            prefill_rows=rows[:0],
            prefill_context_lens=rows[:0],
            prefill_starts=starts[:1],
            block_tables=self._rows.block_tables,
            sample_tokens=self._sample_tokens[:size],
            max_context_len=most,
            decode_context=min(size * most, MOST_CONTEXT),
        )
        logits = self._model.forward(inputs, self._pool)
        return logits, sample(ops, self._rows, logits, rows, context_lens, self._answers[:size])

    def capture(self, capture: GraphCapture, sizes: Sequence[int]) -> None:
        """Makes the graphs of some sizes, the largest first."""
        self._fill_with_pads()
        for size in sorted(sizes, reverse=True):
            self._graphs[size], (logits, _) = capture(partial(self._run, size))
            self._logits[size] = borrowed(logits)
            del logits  # the next graph takes its memory

    def _fill_with_pads(self) -> None:
        self.frame.slots.zero_()
        self.frame.rows.fill_(self._rows.scratch)
        self.frame.context_lens.fill_(1)
