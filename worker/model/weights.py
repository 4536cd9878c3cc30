"""A Llama's weights as the forward uses them, and the tensors of a checkpoint that fill them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import PackedWeight
from worker.model.config import ModelConfig

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices are [outputs, inputs] as packed by the op table; norms and biases are vectors.

    `qkv` holds the rows of q, then k, then v; `gate_up` those of gate, then up.
    """

    input_norm: torch.Tensor
    qkv: PackedWeight
    qkv_bias: torch.Tensor | None
    out: PackedWeight
    out_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: PackedWeight
    gate_up_bias: torch.Tensor | None
    down: PackedWeight
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    embedding: torch.Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [hidden]
    head: PackedWeight  # [vocab, hidden]; made of `embedding` where the two are tied


@dataclass(frozen=True, slots=True)
class FusedTensor:
    """A field of LayerWeights: checkpoint tensors (without the layer's prefix) stacked by rows."""

    field: str
    parts: tuple[tuple[str, int], ...]  # name and rows of each
    columns: int | None  # None: a vector

    def shape_of(self, rows: int) -> tuple[int, ...]:
        return (rows,) if self.columns is None else (rows, self.columns)


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def layer_tensors(config: ModelConfig) -> tuple[FusedTensor, ...]:
    """What a layer of this config is made of; biases only where the config asks for them."""
    hidden, inner, kv = config.hidden_size, config.intermediate_size, config.kv_size
    matrices = [
        ("qkv", "self_attn", [("q", config.query_size), ("k", kv), ("v", kv)], hidden),
        ("out", "self_attn", [("o", hidden)], config.query_size),
        ("gate_up", "mlp", [("gate", inner), ("up", inner)], hidden),
        ("down", "mlp", [("down", hidden)], inner),
    ]
    tensors = [
        FusedTensor("input_norm", (("input_layernorm.weight", hidden),), None),
        FusedTensor("post_norm", (("post_attention_layernorm.weight", hidden),), None),
    ]
    for field, group, parts, columns in matrices:
        names = [(f"{group}.{part}_proj", rows) for part, rows in parts]
        tensors.append(
            FusedTensor(field, tuple((f"{name}.weight", rows) for name, rows in names), columns)
        )
        if config.attention_bias if group == "self_attn" else config.mlp_bias:
            biases = tuple((f"{name}.bias", rows) for name, rows in names)
            tensors.append(FusedTensor(f"{field}_bias", biases, None))
    return tuple(tensors)
