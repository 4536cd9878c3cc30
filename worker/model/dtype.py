"""Which type the model computes in."""

from __future__ import annotations

import logging

import torch

from worker.model.config import DTYPES, ModelConfig
from worker.model.errors import ConfigError

_TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

log = logging.getLogger(__name__)


def resolve_dtype(name: str, config: ModelConfig, device: torch.device | str) -> torch.dtype:
    """`name` is "float32", "bfloat16", "float16", or "auto": the type that config.json names
    (float32 if it names none), never another.

    Raises ConfigError for float16 on a CPU, which is slow and overflows there. Logs a type with
    fewer bits of range or precision than the config's.
    """
    if name not in ("auto", *DTYPES):
        raise ConfigError(f"dtype is {name!r}, must be one of auto, {', '.join(DTYPES)}")
    chosen = config.dtype if name == "auto" else name
    device = torch.device(device)
    if chosen == "float16" and device.type == "cpu":
        source = "config.json names it" if name == "auto" else "it was asked for"
        raise ConfigError(
            f"dtype float16 ({source}) is not supported on the CPU: "
            f"use --dtype bfloat16 (fast) or --dtype float32 (exact)"
        )
    if chosen != config.dtype and chosen != "float32":
        log.warning("weights are cast from %s (config.json) to %s", config.dtype, chosen)
    return _TORCH_DTYPES[chosen]
