"""The least time that a step can take on this CPU: the larger of its bytes over the read
bandwidth and its operations over the matmul rate, both measured in the same run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

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
        head = hidden * config["vocab_size"]
        return ModelSize(layers * layer, head, layers * 2 * kv_size * _BF16_BYTES)


def measure_rates(threads: int) -> Rates:
    """The best of a few tries each, on `threads` threads."""
    torch.set_num_threads(threads)
    data = torch.ones(_READ_BYTES // 4)
    a, b = (torch.randn(_MATMUL_SIZE, _MATMUL_SIZE).bfloat16() for _ in range(2))
    return Rates(
        read_bytes=_READ_BYTES / _best_seconds(data.sum),
        bf16_operations=2 * _MATMUL_SIZE**3 / _best_seconds(lambda: a @ b),
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


def _best_seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_TRIES):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
