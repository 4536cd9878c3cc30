"""A tiny random Llama folder for tests: fp32, 2 layers, hidden 64, 4 query and 2 K/V heads of 16,
256 token ids (id = byte; 254 begins, 255 ends), 512 positions."""

from __future__ import annotations

from pathlib import Path

from deploy.model.random_llama import SHAPES, write_random_llama

ABSENT = object()


def tiny_config(**overrides: object) -> dict[str, object]:
    """config.json of the tiny Llama, with keys replaced, added, or taken out (ABSENT)."""
    config = SHAPES["tiny"] | overrides
    return {key: value for key, value in config.items() if value is not ABSENT}


def tiny_llama(
    folder: Path, *, seed: int = 0, shard_bytes: int = 1 << 30, **overrides: object
) -> Path:
    """Writes a tiny Llama into `folder` and returns it: the same weights for the same arguments."""
    return write_random_llama(folder, tiny_config(**overrides), seed, shard_bytes=shard_bytes)
