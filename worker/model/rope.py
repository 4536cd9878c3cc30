"""The rotary embedding's table of cosines and sines."""

from __future__ import annotations

import math

import torch

from worker.model.config import ModelConfig
from worker.model.rope_config import RopeConfig


def cos_sin_table(config: ModelConfig, device: torch.device | str) -> torch.Tensor:
    """[max_model_len, head_dim] fp32 on `device`: of each position the cosines of its
    head_dim / 2 angles, then the sines."""
    # Made on the CPU whatever the device, so that all devices rotate by the same values.
    positions = torch.arange(config.max_model_len, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(config.rope, config.head_dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(device)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] fp32: radians per position, theta^(-2i / head_dim) (RoFormer, eq. 15), as
    `rope` stretches them. Dynamic rope is the default one up to the original context."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "llama3":
        return _llama3_frequencies(plain, rope)
    return plain


def _llama3_frequencies(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Llama 3.1's stretch: waves longer than original_len / low_freq_factor are slowed by
    `factor`, those shorter than original_len / high_freq_factor are kept, and those between are
    blended by how often they fit into the original context."""
    turns = rope.original_len * plain / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * plain / rope.factor + kept * plain
