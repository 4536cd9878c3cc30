"""Reading config.json and generation_config.json."""

import json
from pathlib import Path

import pytest

from tests.tiny_llama import ABSENT, tiny_config
from worker.model.config import ModelConfig
from worker.model.errors import ConfigError
from worker.model.fingerprint import fingerprint

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def read(folder: Path, max_model_len: int | None = None, **overrides: object) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(tiny_config(**overrides)))
    return ModelConfig.from_folder(folder, max_model_len)


def test_the_shape_is_read(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (256, 64, 128)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.query_size, config.kv_size) == (16, 64, 32)
    assert (config.max_position_embeddings, config.max_model_len) == (512, 512)
    assert (config.rms_norm_eps, config.dtype) == (1e-5, "float32")
    assert (config.tie_word_embeddings, config.attention_bias, config.mlp_bias) == (False,) * 3


@pytest.mark.parametrize("value", [ABSENT, None])
def test_absent_and_null_kv_heads_are_as_many_as_heads(tmp_path: Path, value: object) -> None:
    assert read(tmp_path, num_key_value_heads=value).num_kv_heads == 4


@pytest.mark.parametrize("value", [ABSENT, None])
def test_absent_and_null_head_dim_are_hidden_by_heads(tmp_path: Path, value: object) -> None:
    assert read(tmp_path, head_dim=value).head_dim == 16


def test_an_explicit_head_dim_wins_also_where_the_division_leaves_a_rest(tmp_path: Path) -> None:
    assert read(tmp_path, head_dim=32).head_dim == 32
    assert read(tmp_path, head_dim=32, hidden_size=66).head_dim == 32


def test_both_spellings_of_rope_settings_are_one(tmp_path: Path) -> None:
    older = read(tmp_path, rope_theta=5e5, rope_scaling=LLAMA3)
    newer = read(tmp_path, rope_theta=ABSENT, rope_parameters=LLAMA3 | {"rope_theta": 5e5})
    assert older == newer
    assert (older.rope.rope_type, older.rope.theta, older.rope.factor) == ("llama3", 5e5, 8.0)
    assert (older.rope.low_freq_factor, older.rope.high_freq_factor) == (1.0, 4.0)
    assert older.rope.original_len == 128


def test_the_theta_inside_wins_and_absent_is_ten_thousand(tmp_path: Path) -> None:
    inside = {"rope_type": "default", "rope_theta": 7.0}
    assert read(tmp_path, rope_theta=9.0, rope_parameters=inside).rope.theta == 7.0
    assert read(tmp_path, rope_theta=ABSENT).rope.theta == 10000.0


def test_the_older_key_names_the_rope_type(tmp_path: Path) -> None:
    rope = read(tmp_path, rope_scaling={"type": "linear", "factor": 2.0}).rope
    assert (rope.rope_type, rope.factor) == ("linear", 2.0)


def test_rows_are_as_long_as_the_rope_is_right(tmp_path: Path) -> None:
    assert read(tmp_path, 100).max_model_len == 100
    with pytest.raises(ConfigError) as error:
        read(tmp_path, 513)
    assert str(error.value) == (
        "max_model_len is 513, must be 2 to 512 for this model (max_position_embeddings)"
    )
    assert read(tmp_path, 2).max_model_len == 2
    with pytest.raises(ConfigError, match="is 1, must be 2 to 512"):
        read(tmp_path, 1)
    linear = {"type": "linear", "factor": 4.0}
    assert read(tmp_path, rope_scaling=linear).max_model_len == 512
    assert read(tmp_path, 2048, rope_scaling=linear).max_model_len == 2048
    with pytest.raises(ConfigError, match="is 2049, must be 2 to 2048"):
        read(tmp_path, 2049, rope_scaling=linear)


def test_dynamic_rope_is_served_up_to_the_original_context_only(tmp_path: Path) -> None:
    rope = {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 128}
    assert read(tmp_path, rope_scaling=rope).max_model_len == 128
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_folder(tmp_path, max_model_len=129)
    assert str(error.value) == (
        "max_model_len is 129, must be 2 to 128 for this model "
        "(dynamic rope is served up to the original context)"
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "config.json: rope_scaling has rope_type 'yarn', which is not supported; "
            "supported are default, linear, dynamic, llama3",
        ),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            "config.json: rope_parameters has rope_type 'longrope', which is not supported; "
            "supported are default, linear, dynamic, llama3",
        ),
        (
            {"rope_scaling": {"type": "linear"}},
            "config.json: rope_scaling.factor is None, must be a number over 0",
        ),
        (
            {"rope_scaling": "linear"},
            "config.json: rope_scaling is 'linear', must be an object or null",
        ),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "config.json: rope_scaling.high_freq_factor is 1.0, must be over low_freq_factor (1.0)",
        ),
        (
            {"partial_rotary_factor": 0.5},
            "config.json: partial_rotary_factor 0.5 is not supported, must be 1",
        ),
        ({"rope_theta": 0}, "config.json: rope_theta is 0, must be a number over 0"),
        (
            {"architectures": ["MistralForCausalLM"]},
            "config.json: architectures is ['MistralForCausalLM'], "
            "only LlamaForCausalLM is supported",
        ),
        (
            {"model_type": "mistral"},
            "config.json: model_type is 'mistral', only 'llama' is supported",
        ),
        (
            {"hidden_act": "gelu"},
            "config.json: hidden_act is 'gelu', which is not supported; must be 'silu' or 'swish'",
        ),
        (
            {"sliding_window": 4096},
            "config.json: sliding_window is 4096, which is not supported; must be absent",
        ),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "config.json: quantization_config is {'quant_method': 'gptq'}, which is not supported; "
            "must be absent",
        ),
        (
            {"pretraining_tp": 2},
            "config.json: pretraining_tp is 2, which is not supported; must be absent or 1",
        ),
        (
            {"torch_dtype": "float64"},
            "config.json: torch_dtype is 'float64', which is not supported; "
            "supported are float32, bfloat16, float16",
        ),
        (
            {"num_key_value_heads": 3},
            "config.json: num_attention_heads 4 is no multiple of num_key_value_heads 3",
        ),
        (
            {"num_key_value_heads": 0},
            "config.json: num_key_value_heads is 0, must be a whole number of at least 1 "
            "(below 2^31)",
        ),
        (
            {"head_dim": False},
            "config.json: head_dim is False, must be a whole number of at least 1 (below 2^31)",
        ),
        (
            {"head_dim": ABSENT, "hidden_size": 66},
            "config.json: hidden_size 66 is no multiple of num_attention_heads 4 "
            "and head_dim is not given",
        ),
        (
            {"head_dim": 15},
            "config.json: head_dim 15 is odd; rotary embeddings need an even one",
        ),
        (
            {"vocab_size": ABSENT},
            "config.json: vocab_size is None, must be a whole number of at least 1 (below 2^31)",
        ),
        (
            {"num_hidden_layers": 2.0},
            "config.json: num_hidden_layers is 2.0, must be a whole number of at least 1 "
            "(below 2^31)",
        ),
        (
            {"attention_bias": "yes"},
            "config.json: attention_bias is 'yes', must be true or false",
        ),
        (
            {"rms_norm_eps": -1},
            "config.json: rms_norm_eps is -1, must be a number from 0 to 1",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_named_with_its_value(
    tmp_path: Path, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, **overrides)
    assert str(error.value) == message


def test_two_rope_settings_that_disagree_are_refused(tmp_path: Path) -> None:
    settings = {"type": "linear", "factor": 2.0}
    assert read(tmp_path, rope_scaling=settings, rope_parameters=settings).rope.factor == 2.0
    with pytest.raises(ConfigError, match=r"rope_parameters .* and rope_scaling .* disagree"):
        read(tmp_path, rope_scaling=settings, rope_parameters=settings | {"factor": 3.0})


def test_the_dtype_has_an_old_and_a_new_key_and_is_float32_when_absent(tmp_path: Path) -> None:
    assert read(tmp_path, torch_dtype="float16").dtype == "float16"
    assert read(tmp_path, torch_dtype=ABSENT, dtype="bfloat16").dtype == "bfloat16"
    assert read(tmp_path, torch_dtype="float16", dtype="bfloat16").dtype == "bfloat16"
    assert read(tmp_path, torch_dtype=ABSENT).dtype == "float32"


def test_a_damaged_or_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json does not exist: give a Hugging Face"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": ')
    with pytest.raises(ConfigError, match=r"config\.json cannot be read: Expecting value"):
        ModelConfig.from_folder(tmp_path)


def test_the_fingerprint_depends_on_values_not_on_layout(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"b": 1,\n "a": [1, 2]}')
    assert fingerprint(tmp_path) == (
        "94a786c3662bc7beeb598efa7d8cb58d7bea25d6c275ea9785a0230ff1f8c2ba"
    )
    (tmp_path / "config.json").write_text('{"a":[1,2],"b":1}')
    same = fingerprint(tmp_path)
    (tmp_path / "config.json").write_text('{"a":[2,1],"b":1}')
    assert fingerprint(tmp_path) != same
