"""CUDA graphs of steps with prompt chunks, captured for a few counts of tokens and of draws.

A step is two graphs, so that the counts of either add up and do not multiply: the body, up to the
last layer's attention, which leaves what is drawn from in one place, and the tail, which reads it
there. Bodies are captured with decodes and without: programs that look for decodes and find none
take 0.6 of the 11.2 ms that a prompt of 512 tokens takes an H200 (8B shape; 1B 0.09 of 2.15).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from worker.batch import StepBatch
from worker.borrowed_tensor import borrowed
from worker.captured_step import CapturedStep
from worker.decode_graphs import MOST_CONTEXT
from worker.graph_capture import GraphCapture
from worker.kv_pool import KVPool
from worker.mixed_frame import NO_SEQUENCE, PAD_POSITION, MixedFrame, pack_mixed
from worker.model.llama import Llama
from worker.rows import Rows
from worker.sampler import sample
from worker.step_inputs import StepInputs

# Kernel by kernel a step of the 1B shape takes 10 to 36 ms to launch beside a server's other
# threads, which is up to more than 8,192 tokens keep an H200 busy.
_TOKENS = (
    *(16, 32, 64, 128, 192, 256, 320, 384),
    432,  # not 448, see worker/decode_graphs.py
    *range(512, 1024, 128),
    *range(1024, 2048, 256),
    *range(2048, 4096, 512),
    *range(4096, 8193, 1024),
)
# Chunks that there is room for, at least, and the tokens of a graph for each: a step of more and
# shorter chunks takes a graph of more tokens.
_CHUNKS, _TOKENS_PER_CHUNK = 32, 16


def most_chunks(tokens: int) -> int:
    """The chunks, each of two tokens or more, that the graph of `tokens` has room for."""
    return min(tokens // 2, max(_CHUNKS, tokens // _TOKENS_PER_CHUNK))


def token_sizes(max_step_tokens: int) -> tuple[int, ...]:
    """The token counts captured for a worker whose steps have up to `max_step_tokens`, rising."""
    smaller = [size for size in _TOKENS if size < max_step_tokens]
    return (*smaller, max_step_tokens) if max_step_tokens <= _TOKENS[-1] else tuple(smaller)


class Body(NamedTuple):
    """Which graph runs a step's tokens, of which there are up to `tokens`."""

    tokens: int
    decodes: bool  # whether there may be any


def bodies(token_sizes: Sequence[int]) -> list[Body]:
    """All that are captured for these counts, the largest first."""
    sizes = sorted(token_sizes, reverse=True)
    everything = [Body(size, decodes) for size in sizes for decodes in (True, False)]
    return [body for body in everything if body.decodes or most_chunks(body.tokens)]


class MixedGraphs:
    """Steps of any sequences whose kernels are launched as two, or as one if nothing is drawn.

    The graphs read the step from `frame`, at the start of `landing` (bytes on the device), and are
    right for any division of their tokens. `token_sizes` are the bodies', `draw_sizes` the tails'.
    """

    def __init__(
        self,
        model: Llama,
        pool: KVPool,
        rows: Rows,
        landing: torch.Tensor,
        token_sizes: tuple[int, ...],
        draw_sizes: tuple[int, ...],
    ) -> None:
        self._model, self._pool, self._rows = model, pool, rows
        self.token_sizes, self.draw_sizes = token_sizes, draw_sizes
        self._most_sequences = draw_sizes[-1]
        self._most_chunks = most_chunks(token_sizes[-1])
        words = MixedFrame.num_words(self._most_sequences, self._most_chunks, token_sizes[-1])
        self._words = landing[: 4 * words].view(torch.int32)
        self.frame = MixedFrame.at(self._words, self._most_sequences, self._most_chunks)
        config, device, dtype = model.config, model.device, model.dtype
        lines = self._most_sequences
        self._attended = torch.empty((lines, config.query_size), dtype=dtype, device=device)
        self._residual = torch.empty((lines, config.hidden_size), dtype=dtype, device=device)
        self._answers = torch.empty(lines, dtype=torch.int32, device=device)
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._bodies: dict[Body, torch.cuda.CUDAGraph] = {}
        self._tails: dict[int, torch.cuda.CUDAGraph] = {}
        self._logits: dict[int, torch.Tensor] = {}  # where a tail leaves them

    def size_for(self, batch: StepBatch) -> int | None:
        """Tokens of the graph that runs `batch`, or None: not too many sequences, tokens and
        chunks, and decodes whose contexts are not too long."""
        repetitions, tokens = batch.slots.shape
        sequences = len(batch.rows)
        if repetitions > 1 or not 0 < sequences <= self._most_sequences:
            return None
        if batch.decode_context > MOST_CONTEXT:
            return None
        for size in self.token_sizes[bisect_left(self.token_sizes, tokens) :]:
            if sequences - batch.num_decodes <= most_chunks(size):
                return size
        return None

    def step_of(self, batch: StepBatch) -> CapturedStep | None:
        """How to run `batch`, or None if it is not for these graphs."""
        if (size := self.size_for(batch)) is None:
            return None
        words = pack_mixed(batch, self._most_sequences, self._most_chunks, size, self._rows.scratch)
        place = self._words[: len(words)]
        draws = len(batch.sample_rows)
        logits = self._logits.get(self._draw_size(draws)) if draws else None
        replay = partial(self.replay, Body(size, batch.num_decodes > 0), draws)
        return CapturedStep(words[None], place, replay, logits)

    def replay(self, body: Body, draws: int) -> torch.Tensor:
        """Runs the step that `frame` holds in the graph of `body`; returns int32 [draws or more],
        as `sample`, which the next replay overwrites."""
        self._bodies[body].replay()
        if draws:
            self._tails[self._draw_size(draws)].replay()
        return self._answers

    @torch.inference_mode()
    def run(self, body: Body, draws: int) -> torch.Tensor:
        """The same as `replay`, kernel by kernel."""
        self._run_body(body)
        if draws:
            self._run_tail(self._draw_size(draws))
        return self._answers

    def capture(
        self, capture: GraphCapture, token_sizes: Sequence[int], draw_sizes: Sequence[int]
    ) -> None:
        """Makes the graphs of some sizes, the largest first."""
        self._fill_with_pads()
        for body in bodies(token_sizes):
            self._bodies[body], _ = capture(partial(self._run_body, body))
        for size in sorted(draw_sizes, reverse=True):
            self._tails[size], logits = capture(partial(self._run_tail, size))
            self._logits[size] = borrowed(logits)
            del logits  # the next graph takes its memory

    def _run_body(self, body: Body) -> None:
        frame, ops, most = self.frame, self._model.ops, self._rows.max_model_len
        tokens, chunks = body.tokens, most_chunks(body.tokens)
        sequences = min(self._most_sequences, tokens if body.decodes else chunks)
        decodes = sequences if body.decodes else 0
        token_ids, positions = ops.step_tokens(
            self._rows.tokens,
            frame.rows[:sequences],
            frame.query_starts[: sequences + 1],
            frame.context_lens[:sequences],
            tokens,
            tokens,
        )
        inputs = StepInputs(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=frame.slots[:tokens],
            decode_rows=frame.rows[:decodes],
            decode_context_lens=frame.decode_context_lens[:decodes],
            prefill_rows=frame.chunk_rows[:chunks],
            prefill_context_lens=frame.chunk_context_lens[:chunks],
            prefill_starts=frame.chunk_starts[: chunks + 1],
            block_tables=self._rows.block_tables,
            sample_tokens=frame.sample_tokens[:sequences],
            max_context_len=most,
            decode_context=min(decodes * most, MOST_CONTEXT),
            decode_stream=self._side,
        )
        attended, residual = self._model.body(inputs, self._pool)
        ops.gather_rows(attended, inputs.sample_tokens, self._attended[:sequences])
        ops.gather_rows(residual, inputs.sample_tokens, self._residual[:sequences])

    def _run_tail(self, draws: int) -> torch.Tensor:
        """The logits."""
        frame = self.frame
        logits = self._model.tail(self._attended[:draws], self._residual[:draws])
        rows, positions = frame.sample_rows[:draws], frame.sample_positions[:draws]
        answers = self._answers[:draws]
        sample(self._model.ops, self._rows, logits, rows, positions, answers)
        return logits

    def _draw_size(self, draws: int) -> int:
        return self.draw_sizes[bisect_left(self.draw_sizes, draws)]

    def _fill_with_pads(self) -> None:
        self._words.zero_()
        self.frame.decode_context_lens.fill_(NO_SEQUENCE)
        self.frame.sample_rows.fill_(self._rows.scratch)
        self.frame.sample_positions.fill_(PAD_POSITION)
