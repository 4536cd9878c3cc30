"""The table of cosines and sines, by hand."""

import math

import pytest
import torch

from tests.player import load_llama
from tests.tiny_llama import tiny_llama
from worker.model.rope import inverse_frequencies
from worker.model.rope_config import RopeConfig


def test_default_frequencies_fall_from_one_by_powers_of_theta() -> None:
    assert inverse_frequencies(RopeConfig(theta=10000.0), 8).tolist() == pytest.approx(
        [1.0, 0.1, 0.01, 0.001]
    )


def test_linear_rope_slows_every_frequency_and_dynamic_none() -> None:
    plain = inverse_frequencies(RopeConfig(), 8)
    linear = inverse_frequencies(RopeConfig("linear", factor=4.0), 8)
    dynamic = inverse_frequencies(RopeConfig("dynamic", factor=4.0, original_len=64), 8)
    assert torch.equal(linear, plain / 4)
    assert torch.equal(dynamic, plain)


def test_llama3_rope_keeps_short_waves_slows_long_ones_and_blends_between() -> None:
    rope = RopeConfig("llama3", 10000.0, 8.0, 1.0, 4.0, original_len=64)
    turns = 64 * 0.1 / (2 * math.pi)  # 1.019 turns of the second wave fit: just over the low end
    kept = (turns - 1) / 3
    assert inverse_frequencies(rope, 8).tolist() == pytest.approx(
        [1.0, 0.1 * (kept + (1 - kept) / 8), 0.01 / 8, 0.001 / 8]
    )


def test_the_table_has_a_line_for_each_position_cosines_first(tmp_path) -> None:
    llama = load_llama(tiny_llama(tmp_path), max_model_len=5)
    table = llama._cos_sin
    assert table.shape == (5, 16)
    assert table.dtype is torch.float32
    assert table[3, 0].item() == pytest.approx(math.cos(3.0))
    assert table[3, 8].item() == pytest.approx(math.sin(3.0))
    assert table[0].tolist() == [1.0] * 8 + [0.0] * 8
