"""Profiling free memory, and what the forward makes of a largest step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.player import load_llama
from tests.tiny_llama import tiny_llama
from worker import kv_pool
from worker.model.memory_profile import pool_bytes, run_largest_steps


@pytest.mark.parametrize(
    ("max_rows", "max_step_tokens"), [(4, 64), (7, 7), (3, 1000), (1, 2000), (8, 5)]
)
def test_the_largest_steps_run_and_sample_every_row(
    tmp_path: Path, max_rows: int, max_step_tokens: int
) -> None:
    llama = load_llama(tiny_llama(tmp_path))
    prefill, decode = run_largest_steps(llama, max_rows, max_step_tokens, block_size=16)
    assert prefill.shape == (min(max_rows, max_step_tokens), 256)
    assert decode.shape == (max_rows, 256)
    assert prefill.isfinite().all()
    assert decode.isfinite().all()


def test_every_row_of_the_largest_steps_has_penalties_and_log_probabilities(tmp_path: Path) -> None:
    """So that what they need is not taken by the pool; a line alone, as of other kernels."""
    llama = load_llama(tiny_llama(tmp_path))
    ops, drawn = llama.ops, []

    def penalize(logits: torch.Tensor, lines: torch.Tensor, *more: object, **bounds: int):
        drawn.append(("penalize", len(lines)))
        return ops.penalize(logits, lines, *more, **bounds)

    def top_logprobs(logits: torch.Tensor, lines: torch.Tensor, sampled: torch.Tensor, count: int):
        drawn.append((f"top {count}", len(lines)))
        return ops.top_logprobs(logits, lines, sampled, count)

    llama.ops = replace(ops, penalize=penalize, top_logprobs=top_logprobs)
    run_largest_steps(llama, 4, 64, block_size=16)
    one_step = [(name, lines) for lines in (1, 4) for name in ("penalize", "top 20")]
    assert drawn == 2 * one_step


def test_on_a_cpu_the_default_share_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_pool, "available_memory", lambda: 1 << 30)
    llama = load_llama(tiny_llama(tmp_path))
    sizes = {"max_rows": 4, "max_step_tokens": 64, "block_size": 16, "utilization": 0.9}
    assert pool_bytes(llama, **sizes) == 1 << 28


@pytest.mark.gpu
def test_on_a_gpu_model_largest_step_and_pool_fit_into_the_share_of_the_card(
    tmp_path: Path,
) -> None:
    llama = load_llama(tiny_llama(tmp_path), torch.bfloat16, "cuda")
    share = 0.5
    sizes = {"max_rows": 256, "max_step_tokens": 8192, "block_size": 16, "utilization": share}
    size = pool_bytes(llama, **sizes)
    free, total = torch.cuda.mem_get_info()
    assert 0.9 * (total * share - (total - free)) < size < total * share
    pool = torch.empty(size, dtype=torch.uint8, device="cuda")
    run_largest_steps(llama, 256, 8192, 16)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    assert total - free <= total * share * 1.01
    del pool
