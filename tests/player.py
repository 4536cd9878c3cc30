"""Plays rows of tokens through the real model, for tests of the forward."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch

import kernels
from worker.kv_pool import KVPool
from worker.model.config import ModelConfig
from worker.model.llama import Llama
from worker.model.loader import load_weights
from worker.step_inputs import StepInputs


def load_llama(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    face: str = "auto",
    max_model_len: int | None = None,
    batch_invariant: bool = False,
) -> Llama:
    """The model of `folder`, without a progress bar."""
    config = ModelConfig.from_folder(folder, max_model_len)
    ops = kernels.ops(device, face, batch_invariant)
    return Llama(config, load_weights(folder, config, dtype, device, ops, False), ops, device)


class Player:
    """Feeds token rows to a model in chunks, with shuffled block tables in a pool full of NaN."""

    def __init__(self, model: Llama, lengths: Sequence[int], block_size: int = 4, seed: int = 0):
        """`lengths`: the most tokens of each row."""
        self.model = model
        self.block_size = block_size
        blocks = [-(-length // block_size) for length in lengths]
        ids = list(range(1, 1 + sum(blocks)))
        random.Random(seed).shuffle(ids)
        self.tables = torch.zeros((len(lengths), max(blocks)), dtype=torch.int32)
        for row, count in enumerate(blocks):
            self.tables[row, :count] = torch.tensor([ids.pop() for _ in range(count)])
        config = model.config
        shape = (
            config.num_layers,
            1 + sum(blocks),
            block_size,
            config.num_kv_heads,
            config.head_dim,
        )
        self.pool = KVPool(
            *(
                torch.full(shape, float("nan"), dtype=model.dtype, device=model.device)
                for _ in range(2)
            )
        )
        self.lengths = [0] * len(lengths)

    def step(self, chunks: dict[int, Sequence[int]], samples: Sequence[int] | None = None):
        """One forward: `chunks` maps row to its next token ids. Returns logits [m, vocab] of the
        step's token indices `samples` (default: all tokens), in the order of `order(chunks)`."""
        inputs = self.inputs(chunks, samples)
        logits = self.model.forward(inputs, self.pool)
        for row, ids in chunks.items():
            self.lengths[row] += len(ids)
        return logits

    @staticmethod
    def order(chunks: dict[int, Sequence[int]]) -> list[int]:
        """The rows of a step: those with one token first."""
        return sorted(chunks, key=lambda row: len(chunks[row]) > 1)

    def inputs(
        self, chunks: dict[int, Sequence[int]], samples: Sequence[int] | None = None
    ) -> StepInputs:
        rows = self.order(chunks)
        lens = [len(chunks[row]) for row in rows]
        decodes = lens.count(1)
        ids = [token for row in rows for token in chunks[row]]
        positions = [self.lengths[row] + i for row in rows for i in range(len(chunks[row]))]
        owners = [row for row in rows for _ in chunks[row]]
        slots = [
            int(self.tables[row, position // self.block_size]) * self.block_size
            + position % self.block_size
            for row, position in zip(owners, positions, strict=True)
        ]
        contexts = [self.lengths[row] + count for row, count in zip(rows, lens, strict=True)]

        def column(values: Sequence[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self.model.device)

        return StepInputs(
            token_ids=column(ids),
            positions=column(positions),
            slot_mapping=column(slots, torch.int64),
            decode_rows=column(rows[:decodes]),
            decode_context_lens=column(contexts[:decodes]),
            prefill_rows=column(rows[decodes:]),
            prefill_context_lens=column(contexts[decodes:]),
            prefill_starts=column([sum(lens[:i]) for i in range(decodes, len(lens) + 1)]),
            block_tables=self.tables.to(self.model.device),
            sample_tokens=column(range(len(ids)) if samples is None else samples, torch.int64),
            max_context_len=max(contexts),
            decode_context=sum(contexts[:decodes]),
        )


def greedy(
    model: Llama, prompts: Sequence[Sequence[int]], count: int, block_size: int = 8
) -> list[list[int]]:
    """`count` greedy tokens after each prompt, all rows in one batch, end tokens ignored."""
    player = Player(model, [len(ids) + count for ids in prompts], block_size)
    chunks: dict[int, Sequence[int]] = dict(enumerate(prompts))
    outputs: list[list[int]] = [[] for _ in prompts]
    for _ in range(count):
        order = Player.order(chunks)
        ends = torch.tensor([len(chunks[row]) for row in order]).cumsum(0) - 1
        tokens = player.step(chunks, ends.tolist()).argmax(-1).tolist()
        for row, token in zip(order, tokens, strict=True):
            outputs[row].append(token)
        chunks = {row: tokens[-1:] for row, tokens in enumerate(outputs)}
    return outputs
