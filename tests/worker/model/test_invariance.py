"""The trial of `--batch-invariant` at a worker's start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.player import load_llama
from tests.tiny_llama import tiny_llama
from worker.model.invariance import NotInvariantError, check_invariance
from worker.model.llama import Llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    folder = tmp_path_factory.mktemp("tiny")
    return load_llama(tiny_llama(folder, max_position_embeddings=1024, num_hidden_layers=2))


def nudged(function: Callable[..., torch.Tensor], when: Callable[..., bool]) -> Callable[..., Any]:
    """`function`, whose result is one rounding off for the inputs that `when` picks."""

    def wrapped(first: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        result = function(first, *rest, **named)
        return torch.nextafter(result, torch.full_like(result, 1e9)) if when(first) else result

    return wrapped


def with_ops(model: Llama, **functions: Callable[..., Any]) -> Llama:
    return Llama(model.config, model.weights, replace(model.ops, **functions), model.device)


@pytest.mark.parametrize("block_size", [1, 24])
def test_a_model_whose_sums_have_one_order_passes(model: Llama, block_size: int) -> None:
    check_invariance(model, block_size)


def test_a_model_of_few_positions_is_tried_on_those(model: Llama, tmp_path: Path) -> None:
    check_invariance(load_llama(tiny_llama(tmp_path), max_model_len=5), 16)


def test_a_product_that_follows_the_number_of_rows_is_found(model: Llama) -> None:
    odd = nudged(model.ops.add_linear, lambda x: x.shape[0] == 129)
    with pytest.raises(NotInvariantError, match=r"in a step of 129 decodes are not those of the"):
        check_invariance(with_ops(model, add_linear=odd), 16)


def test_a_decode_that_is_no_prompts_position_is_found(model: Llama) -> None:
    odd = nudged(model.ops.paged_attention_decode, lambda _: True)
    with pytest.raises(NotInvariantError, match=r"device \(cpu\).* in a step of 1 decodes are not"):
        check_invariance(with_ops(model, paged_attention_decode=odd), 16)


def test_a_chunk_that_is_not_the_whole_is_found(model: Llama) -> None:
    odd = nudged(model.ops.paged_attention_prefill, lambda q: q.shape[0] == 64)
    with pytest.raises(NotInvariantError, match=r"in chunks .*run without --batch-invariant"):
        check_invariance(with_ops(model, paged_attention_prefill=odd), 16)


def test_damaged_weights_are_not_taken_for_another_order(tmp_path: Path) -> None:
    damaged = load_llama(tiny_llama(tmp_path))
    damaged.weights.final_norm.fill_(float("nan"))
    check_invariance(damaged, 16)
