"""Which type the model computes in."""

import logging
from pathlib import Path

import pytest
import torch

from tests.tiny_llama import tiny_llama
from worker.model.config import ModelConfig
from worker.model.dtype import resolve_dtype
from worker.model.errors import ConfigError


def config(folder: Path, dtype: str) -> ModelConfig:
    return ModelConfig.from_folder(tiny_llama(folder, torch_dtype=dtype))


def test_auto_takes_what_the_config_names(tmp_path: Path) -> None:
    assert resolve_dtype("auto", config(tmp_path, "bfloat16"), "cpu") is torch.bfloat16
    assert resolve_dtype("auto", config(tmp_path, "float32"), "cuda") is torch.float32
    assert resolve_dtype("auto", config(tmp_path, "float16"), "cuda") is torch.float16


def test_half_on_a_cpu_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_dtype("auto", config(tmp_path, "float16"), "cpu")
    assert str(error.value) == (
        "dtype float16 (config.json names it) is not supported on the CPU: "
        "use --dtype bfloat16 (fast) or --dtype float32 (exact)"
    )
    with pytest.raises(ConfigError, match=r"dtype float16 \(it was asked for\)"):
        resolve_dtype("float16", config(tmp_path, "float32"), "cpu")
    assert resolve_dtype("float32", config(tmp_path, "float16"), "cpu") is torch.float32


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_dtype("int8", config(tmp_path, "float32"), "cpu")
    assert str(error.value) == ("dtype is 'int8', must be one of auto, float32, bfloat16, float16")


@pytest.mark.parametrize(
    ("stored", "asked", "logged"),
    [
        ("float32", "bfloat16", ["weights are cast from float32 (config.json) to bfloat16"]),
        ("float16", "bfloat16", ["weights are cast from float16 (config.json) to bfloat16"]),
        ("bfloat16", "float32", []),
        ("bfloat16", "auto", []),
    ],
)
def test_a_down_cast_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stored: str, asked: str, logged: list[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        resolve_dtype(asked, config(tmp_path, stored), "cpu")
    assert [record.message for record in caplog.records] == logged
