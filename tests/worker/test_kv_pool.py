"""The K/V pool's size and memory."""

from pathlib import Path

import pytest
import torch

from tests.tiny_llama import tiny_llama
from worker import kv_pool
from worker.kv_pool import (
    PoolError,
    allocate_pool,
    available_memory,
    bytes_per_block,
    cpu_pool_bytes,
    plan_pool,
)
from worker.model.config import ModelConfig

# K and V, 2 layers, 16 tokens, 2 heads of 16, 4 bytes each
BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4


@pytest.fixture
def config(tmp_path: Path) -> ModelConfig:
    return ModelConfig.from_folder(tiny_llama(tmp_path))


def plan(config: ModelConfig, **size: int) -> kv_pool.PoolPlan:
    return plan_pool(config, torch.float32, 16, max_rows=8, **size)


def test_bytes_per_block_count_k_and_v_of_all_layers(config: ModelConfig) -> None:
    assert bytes_per_block(config, 16, torch.float32) == BLOCK_BYTES == 8192
    assert bytes_per_block(config, 16, torch.bfloat16) == 4096


def test_a_given_number_of_blocks_is_taken(config: ModelConfig) -> None:
    pool = plan(config, num_blocks=70)
    assert (pool.num_blocks, pool.total_bytes, pool.tokens) == (70, 70 * 8192, 69 * 16)
    assert pool.full_length_requests == 2  # of 32 blocks each, 69 usable


def test_given_memory_is_not_exceeded(config: ModelConfig) -> None:
    assert plan(config, kv_memory=10 * 8192 + 8191).num_blocks == 10
    assert plan(config, kv_memory=10 * 8192).num_blocks == 10


def test_free_memory_is_taken_up_to_what_all_rows_can_use(config: ModelConfig) -> None:
    assert plan(config, available=100 * 8192).num_blocks == 100
    assert plan(config, available=1 << 40).num_blocks == 1 + 8 * 32


def test_the_plan_is_printed(config: ModelConfig) -> None:
    assert plan(config, num_blocks=70).describe() == [
        "K/V pool: 70 blocks of 16 tokens, 8192 bytes per block, 0.00 GiB (--num-blocks)",
        "K/V pool: room for 1104 tokens, or 2 requests of max_model_len (512)",
    ]


def test_a_pool_smaller_than_one_full_request_is_warned_of(config: ModelConfig) -> None:
    assert plan(config, num_blocks=32).describe()[2:] == [
        "warning: no request can reach max_model_len (512 tokens): the K/V pool holds 496; give "
        "it more with --kv-memory or --num-blocks, or lower --max-model-len"
    ]
    assert plan(config, num_blocks=33).describe()[2:] == []


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (
            {"num_blocks": 1},
            "the K/V pool has room for 1 blocks of 8192 bytes (--num-blocks), must be at least 2 "
            "(one is scratch): give it more with --kv-memory or --num-blocks, "
            "or take a smaller --block-size",
        ),
        (
            {"kv_memory": 8191},
            "the K/V pool has room for 0 blocks of 8192 bytes (--kv-memory 8191 bytes), must be "
            "at least 2 (one is scratch): give it more with --kv-memory or --num-blocks, "
            "or take a smaller --block-size",
        ),
        (
            {"num_blocks": 2**31},
            "the K/V pool has 2147483648 blocks (--num-blocks), must be at most 2147483647",
        ),
        (
            {"num_blocks": 5, "kv_memory": 1 << 20},
            "give either --num-blocks or --kv-memory, not both",
        ),
    ],
)
def test_a_pool_that_cannot_serve_is_refused(
    config: ModelConfig, size: dict[str, int], message: str
) -> None:
    with pytest.raises(PoolError) as error:
        plan(config, **size)
    assert str(error.value) == message


def test_the_pool_has_k_and_v_apart_and_a_view_of_each_layer(config: ModelConfig) -> None:
    pool = allocate_pool(plan(config, num_blocks=5), config, torch.bfloat16, "cpu")
    assert pool.k.shape == pool.v.shape == (2, 5, 16, 2, 16)
    assert pool.k.dtype is torch.bfloat16
    assert (pool.num_blocks, pool.block_size, len(pool.layers)) == (5, 16, 2)
    for layer, (k, v) in enumerate(pool.layers):
        assert k.is_contiguous()
        assert k.data_ptr() == pool.k[layer].data_ptr()
        assert v.data_ptr() == pool.v[layer].data_ptr()


def test_memory_that_is_not_there_is_refused_with_advice(config: ModelConfig) -> None:
    # More than addresses reach, as some systems grant all that may never be used.
    blocks = 2**31 - 1
    pool = plan_pool(config, torch.float32, 1024, max_rows=8, num_blocks=blocks)
    with pytest.raises(PoolError) as error:
        allocate_pool(pool, config, torch.float32, "cpu")
    message, size = str(error.value), blocks * 64 * 8192
    assert message.startswith(f"{size} bytes for the K/V pool are not to be had on cpu")
    assert message.endswith("lower --kv-memory, --num-blocks or --gpu-memory-utilization")


VERSION_2 = ("memory.max", "memory.current")
VERSION_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
# What version 1 has where nothing is limited.
NO_LIMIT_1 = "9223372036854771712"


def machine(
    root: Path, available_kib: int, limit: str, used: int, files: tuple[str, str] = VERSION_2
) -> Path:
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:  {available_kib} kB\n")
    for file, value in zip(files, (limit, used), strict=True):
        path = root / "sys/fs/cgroup" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(("files", "none"), [(VERSION_2, "max"), (VERSION_1, NO_LIMIT_1)])
def test_available_memory_is_the_machines_or_the_control_groups(
    files: tuple[str, str], none: str, tmp_path: Path
) -> None:
    for name, limit, used, expected in (
        ("no limit", none, 500, 1000 * 1024),
        ("room left", "2000000", 0, 1000 * 1024),
        ("less room", "600000", 100000, 500000),
        ("over the limit", "600000", 700000, 0),
    ):
        assert available_memory(machine(tmp_path / name, 1000, limit, used, files)) == expected
    with pytest.raises(PoolError, match="give --kv-memory or --num-blocks"):
        available_memory(tmp_path)


def test_the_default_on_a_cpu_is_a_quarter_of_what_is_available_at_most_4_gib(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_pool, "available_memory", lambda: 10 << 30)
    assert cpu_pool_bytes() == (10 << 30) // 4
    monkeypatch.setattr(kv_pool, "available_memory", lambda: 64 << 30)
    assert cpu_pool_bytes() == 4 << 30
