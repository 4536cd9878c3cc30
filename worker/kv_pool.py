"""The paged K/V pool: how many blocks it gets, and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from worker.model.config import ModelConfig

CPU_DEFAULT_BYTES = 4 << 30
CPU_DEFAULT_SHARE = 4  # one part in four of the memory that is available
_LEAST_BLOCKS = 2  # the scratch block and one to serve from
_MOST_BLOCKS = 2**31 - 1  # block ids are int32
# Limit and use of a container's memory, by version 2 and 1 of Linux' control groups.
_GROUP_FILES = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


class PoolError(ValueError):
    """No pool that can serve; the message says what was found and which flag to change."""


@dataclass(frozen=True)
class KVPool:
    """K and V apart, each [layers, blocks, block_size, kv_heads, head_dim].

    A slot holds garbage (NaN included) until a token is written to it; nothing reads it before.
    """

    k: torch.Tensor
    v: torch.Tensor

    @cached_property
    def layers(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """K and V of each layer [blocks, block_size, kv_heads, head_dim]."""
        return tuple(zip(self.k.unbind(), self.v.unbind(), strict=True))

    @property
    def num_blocks(self) -> int:
        return self.k.shape[1]

    @property
    def block_size(self) -> int:
        return self.k.shape[2]


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Size of a pool. `num_blocks` counts the scratch block. Raises PoolError below 2 blocks."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    max_model_len: int
    source: str  # what decided the number of blocks, for the printed plan

    def __post_init__(self) -> None:
        if self.num_blocks < _LEAST_BLOCKS:
            raise PoolError(
                f"the K/V pool has room for {max(self.num_blocks, 0)} blocks of "
                f"{self.bytes_per_block} bytes ({self.source}), must be at least {_LEAST_BLOCKS} "
                f"(one is scratch): give it more with --kv-memory or --num-blocks, "
                f"or take a smaller --block-size"
            )
        if self.num_blocks > _MOST_BLOCKS:
            raise PoolError(
                f"the K/V pool has {self.num_blocks} blocks ({self.source}), "
                f"must be at most {_MOST_BLOCKS}"
            )

    @property
    def total_bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block

    @property
    def tokens(self) -> int:
        """Token positions that requests can use."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def full_length_requests(self) -> int:
        """Requests of max_model_len tokens that fit at once."""
        return (self.num_blocks - 1) // -(-self.max_model_len // self.block_size)

    def describe(self) -> list[str]:
        """The plan as lines for a person; the last one a warning if no full request fits."""
        lines = [
            f"K/V pool: {self.num_blocks} blocks of {self.block_size} tokens, "
            f"{self.bytes_per_block} bytes per block, {self.total_bytes / 2**30:.2f} GiB "
            f"({self.source})",
            f"K/V pool: room for {self.tokens} tokens, or {self.full_length_requests} requests of "
            f"max_model_len ({self.max_model_len})",
        ]
        if not self.full_length_requests:
            lines.append(
                f"warning: no request can reach max_model_len ({self.max_model_len} tokens): the "
                f"K/V pool holds {self.tokens}; give it more with --kv-memory or --num-blocks, "
                f"or lower --max-model-len"
            )
        return lines


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, K and V."""
    return 2 * config.num_layers * block_size * config.kv_size * dtype.itemsize


def plan_pool(
    config: ModelConfig,
    dtype: torch.dtype,
    block_size: int,
    *,
    max_rows: int,
    num_blocks: int | None = None,
    kv_memory: int | None = None,
    available: int | None = None,
) -> PoolPlan:
    """A pool of `num_blocks`, or of `kv_memory` bytes, or of the `available` bytes that a profile
    of free memory found; the last is cut to what `max_rows` full rows can use.

    Raises PoolError, also unless exactly one of the three is given.
    """
    given = [value for value in (num_blocks, kv_memory, available) if value is not None]
    if len(given) != 1:
        raise PoolError("give either --num-blocks or --kv-memory, not both")
    size = bytes_per_block(config, block_size, dtype)
    if num_blocks is not None:
        blocks, source = num_blocks, "--num-blocks"
    elif kv_memory is not None:
        blocks, source = kv_memory // size, f"--kv-memory {kv_memory} bytes"
    else:
        most = 1 + max_rows * -(-config.max_model_len // block_size)
        blocks, source = min(given[0] // size, most), f"{given[0]} bytes available"
    return PoolPlan(blocks, block_size, size, config.max_model_len, source)


def allocate_pool(
    plan: PoolPlan, config: ModelConfig, dtype: torch.dtype, device: torch.device | str
) -> KVPool:
    """The memory of `plan`, not initialized. Raises PoolError if the device does not have it."""
    shape = (
        config.num_layers,
        plan.num_blocks,
        plan.block_size,
        config.num_kv_heads,
        config.head_dim,
    )
    try:
        return KVPool(
            k=torch.empty(shape, dtype=dtype, device=device),
            v=torch.empty(shape, dtype=dtype, device=device),
        )
    except (torch.OutOfMemoryError, RuntimeError) as error:
        raise PoolError(
            f"{plan.total_bytes} bytes for the K/V pool are not to be had on {device} ({error}): "
            f"lower --kv-memory, --num-blocks or --gpu-memory-utilization"
        ) from error


def cpu_pool_bytes() -> int:
    """Default on a CPU: a quarter of the memory available to this process, at most 4 GiB."""
    return min(CPU_DEFAULT_BYTES, available_memory() // CPU_DEFAULT_SHARE)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the machine's, or its control group's if less.

    `root` is where /proc and /sys are mounted.
    """
    found = []
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit_file, used_file in _GROUP_FILES:
        limit, used = (_text(root / file).strip() for file in (limit_file, used_file))
        if limit.isdigit() and used.isdigit():
            found.append(max(0, int(limit) - int(used)))
    if not found:
        raise PoolError("free memory cannot be read here: give --kv-memory or --num-blocks")
    return min(found)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
