"""Floors, by hand on a model of few weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.bench.floor import ModelSize, Rates, decode_floor, prompts_floor, served_floor

# 100 bytes and 1,000 operations a second.
RATES = Rates(100.0, 1000.0)
MODEL = ModelSize(
    layer_weights=40, head_weights=10, kv_bytes_per_token=5, attention_width=3
)  # 100 bytes of weights


def test_the_size_of_a_model_is_read_from_its_config(tmp_path: Path) -> None:
    config = {
        "hidden_size": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 3,
        "intermediate_size": 10,
        "num_hidden_layers": 2,
        "vocab_size": 20,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = ModelSize.of(tmp_path)
    # q and o of 8 x 12, k and v of 8 x 6, gate, up and down of 8 x 10.
    assert size.layer_weights == 2 * (2 * 96 + 2 * 48 + 3 * 80)
    assert size.head_weights == 160
    assert size.kv_bytes_per_token == 2 * 2 * 6 * 2
    assert size.attention_width == 2 * 12


def test_few_streams_are_bound_by_bytes_and_many_by_operations() -> None:
    assert decode_floor(RATES, MODEL, 1, 4) == pytest.approx(1.0 + 0.2)
    assert decode_floor(RATES, MODEL, 20, 4) == pytest.approx(2.0 + 4.0)


def test_prompts_cost_products_and_causal_attention() -> None:
    products = 2 * (30 * 40 + 2 * 10)
    attention = 2 * 3 * (10**2 + 20**2)
    assert prompts_floor(RATES, MODEL, [10, 20]) == pytest.approx((products + attention) / 1000)
    assert prompts_floor(RATES, MODEL, [1]) == pytest.approx(1.0)  # the weights are read


def test_what_is_served_at_once_costs_prompts_and_every_decode_but_the_first_token() -> None:
    # Contexts of 11 and 12; and none.
    decodes = 2 * 2 * 50 / 1000 + (11 + 12) * 5 / 100
    prompts = prompts_floor(RATES, MODEL, [10, 20])
    assert served_floor(RATES, MODEL, [10, 20], [3, 1]) == pytest.approx(prompts + decodes)
