"""What a worker goes through to have its kernels compiled; on this CPU there are none."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from tests.player import load_llama
from tests.tiny_llama import tiny_llama
from worker import kernels_ahead
from worker.decode_graphs import graph_sizes
from worker.geometry import Geometry
from worker.kernels_ahead import compile_kernels, two_layers
from worker.kv_pool import KVPool
from worker.mixed_graphs import bodies, token_sizes
from worker.model.llama import Llama
from worker.step_inputs import StepInputs

ROWS, STEP_TOKENS = 4, 40


@pytest.fixture
def model(tmp_path: Path) -> Llama:
    return load_llama(tiny_llama(tmp_path, num_hidden_layers=3))


@pytest.fixture
def geometry(model: Llama) -> Geometry:
    config = model.config
    return Geometry(
        device="cpu", max_model_len=64, num_blocks=9, block_size=8, max_rows=ROWS,
        max_step_tokens=STEP_TOKENS, max_steps_in_flight=2, max_decode_steps=1, fingerprint="",
        vocab_size=config.vocab_size, num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads, head_dim=config.head_dim, dtype="float32",
        bytes_per_block=1,
    )  # fmt: skip


def test_every_size_of_graph_and_the_largest_steps_go_through_two_layers(
    model: Llama,
    geometry: Geometry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[tuple[int, int]] = []
    body = Llama.body

    def spy(self: Llama, inputs: StepInputs, pool: KVPool) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((len(self.weights.layers), len(inputs.token_ids)))
        return body(self, inputs, pool)

    changes: list[tuple[torch.dtype, ...]] = []

    def scatter(*tensors: torch.Tensor) -> None:
        changes.append(tuple(x.dtype for x in tensors))

    model.ops = replace(model.ops, scatter=scatter)
    monkeypatch.setattr(Llama, "body", spy)
    with caplog.at_level(logging.INFO):
        compile_kernels(model, geometry, True)
    largest = [STEP_TOKENS, ROWS]
    graphs = [body.tokens for body in bodies(token_sizes(STEP_TOKENS))]
    decodes = [*sorted(graph_sizes(ROWS), reverse=True)]
    assert seen == [(2, tokens) for tokens in (*largest, *graphs, *decodes)]
    assert changes == [(torch.int32, torch.int64, torch.int32)]  # as Rows.apply
    assert "0 kernels in " in caplog.text
    seen.clear()
    compile_kernels(model, geometry, False)
    assert seen == [(2, tokens) for tokens in largest]


def test_two_layers_are_the_first_and_the_last(model: Llama) -> None:
    thin = two_layers(model)
    assert thin.config.num_layers == 2
    assert thin.weights.layers == (model.weights.layers[0], model.weights.layers[2])
    assert thin.weights.head is model.weights.head


def test_a_failure_is_told_and_stops_nothing(
    model: Llama,
    geometry: Geometry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(kernels_ahead, "run_largest_steps", fail)
    compile_kernels(model, geometry, True)
    assert "kernels were not compiled ahead: no compiler" in caplog.text
