"""The least time that work can take: for each phase the larger of its bytes over the read
bandwidth and its operations over the matmul rate, both measured in the same run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from worker.huge_pages import use_huge_pages

_READ_BYTES = 1 << 29  # many times any cache
_MATMUL_SIZE = 2048
_TRIES = 10
_BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class Rates:
    read_bytes: float  # per second
    bf16_operations: float  # per second


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Of a model in bfloat16."""

    layer_weights: int  # parameters of all layers
    head_weights: int
    kv_bytes_per_token: int
    attention_width: int  # query values of a token, of all layers

    @property
    def weights(self) -> int:
        """Those that a decode step reads; of the embedding it reads a line per token."""
        return self.layer_weights + self.head_weights

    @staticmethod
    def of(folder: Path) -> ModelSize:
        config = json.loads((folder / "config.json").read_text())
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        head_dim = config.get("head_dim") or hidden // heads
        kv_size = (config.get("num_key_value_heads") or heads) * head_dim
        attention = hidden * (2 * heads * head_dim + 2 * kv_size)
        layer = attention + 3 * hidden * config["intermediate_size"]
        layers = config["num_hidden_layers"]
        return ModelSize(
            layer_weights=layers * layer,
            head_weights=hidden * config["vocab_size"],
            kv_bytes_per_token=layers * 2 * kv_size * _BF16_BYTES,
            attention_width=layers * heads * head_dim,
        )


def measure_rates(threads: int) -> Rates:
    """This CPU's: the best of a few tries each, on `threads` threads, in huge pages as a worker's
    weights are; of operations in bfloat16 or float32, whichever it multiplies faster."""
    torch.set_num_threads(threads)
    data = torch.ones(_READ_BYTES // 4)
    use_huge_pages()
    wide = torch.randn(2, _MATMUL_SIZE, _MATMUL_SIZE)
    seconds = min(_best_seconds(partial(torch.mm, a, b)) for a, b in (wide, wide.bfloat16()))
    return Rates(
        read_bytes=_READ_BYTES / _best_seconds(data.sum),
        bf16_operations=2 * _MATMUL_SIZE**3 / seconds,
    )


def decode_floor(rates: Rates, model: ModelSize, streams: int, context: float) -> float:
    """Seconds of a step with one token for each stream. `context`: their mean length."""
    kv_bytes = streams * context * model.kv_bytes_per_token
    weights = max(
        model.weights * _BF16_BYTES / rates.read_bytes,
        2 * streams * model.weights / rates.bf16_operations,
    )
    return weights + kv_bytes / rates.read_bytes


def prefill_floor(rates: Rates, model: ModelSize, tokens: int) -> float:
    """Seconds of the products of one prompt; only its last token needs the head."""
    operations = 2 * (tokens * model.layer_weights + model.head_weights)
    return max(model.weights * _BF16_BYTES / rates.read_bytes, operations / rates.bf16_operations)


def prompts_floor(rates: Rates, model: ModelSize, lengths: Sequence[int]) -> float:
    """Seconds of prompts that come at once: their products, and causal attention with 2 n^2
    operations for each query value of a prompt of n tokens."""
    tokens, squares = float(np.sum(lengths)), float(np.square(lengths, dtype=np.float64).sum())
    products = 2 * (tokens * model.layer_weights + len(lengths) * model.head_weights)
    operations = products + 2 * model.attention_width * squares
    return max(model.weights * _BF16_BYTES / rates.read_bytes, operations / rates.bf16_operations)


def served_floor(
    rates: Rates, model: ModelSize, prompts: Sequence[int], outputs: Sequence[int]
) -> float:
    """Seconds of requests that come at once, with rows that are never idle: their prompts, whose
    last token gives an output's first, the products of all other outputs' tokens, and reading
    their contexts."""
    decodes = np.asarray(outputs, np.float64) - 1
    contexts = float((decodes * np.asarray(prompts) + decodes * (decodes + 1) / 2).sum())
    products = 2 * float(decodes.sum()) * model.weights / rates.bf16_operations
    reading = contexts * model.kv_bytes_per_token / rates.read_bytes
    return prompts_floor(rates, model, prompts) + products + reading


def _best_seconds(work: Callable[[], object]) -> float:
    """Of _TRIES, or as many as begin within a second."""
    best, begin = float("inf"), time.perf_counter()
    for _ in range(_TRIES):
        start = time.perf_counter()
        if start - begin > 1.0:
            break
        work()
        best = min(best, time.perf_counter() - start)
    return best
