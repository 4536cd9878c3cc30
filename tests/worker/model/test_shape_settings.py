"""Head sizes and biases, beside the kinds of test_llama_logits.py."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.player import Player, load_llama
from tests.tiny_llama import tiny_llama
from worker.model.errors import WeightsError

BIASES = [
    *(f"self_attn.{name}_proj.bias" for name in "qkvo"),
    *(f"mlp.{name}_proj.bias" for name in ("gate", "up", "down")),
]
IDS = [1, 2, 3, 200, 100]


def ours(folder: Path) -> torch.Tensor:
    return Player(load_llama(folder), [len(IDS)]).step({0: IDS})


def set_flags(folder: Path, **flags: bool) -> None:
    config = json.loads((folder / "config.json").read_text()) | flags
    (folder / "config.json").write_text(json.dumps(config))


@torch.no_grad()
def test_head_dim_counts_where_hidden_by_heads_leaves_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_llama(tmp_path, hidden_size=66, num_attention_heads=4, head_dim=16)
    # Its forward can do this; only its check of configs cannot.
    checks = [c for c in _class_checks() if c.__name__ != "validate_architecture"]
    monkeypatch.setattr(transformers.LlamaConfig, "__class_validators__", checks, raising=False)
    other = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = other(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(ours(folder), expected, atol=1e-4, rtol=0)


def _class_checks() -> list:
    return list(getattr(transformers.LlamaConfig, "__class_validators__", []))


@torch.no_grad()
@pytest.mark.parametrize("bias", BIASES)
def test_each_of_the_seven_biases_is_applied(tmp_path: Path, bias: str) -> None:
    folder = tiny_llama(tmp_path, attention_bias=True, mlp_bias=True)
    before = ours(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = f"model.layers.1.{bias}"
    tensors[name] = tensors[name].flip(0) + 0.5
    save_file(tensors, file, metadata={"format": "pt"})
    other = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    after = ours(folder)
    torch.testing.assert_close(after, other(torch.tensor([IDS])).logits[0], atol=1e-4, rtol=0)
    assert (after - before).abs().max() > 1e-2


def test_bias_tensors_without_their_flag_are_refused_by_name(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, mlp_bias=True)
    set_flags(folder, mlp_bias=False)
    with pytest.raises(WeightsError) as error:
        load_llama(folder)
    assert str(error.value) == (
        "model.safetensors: tensor model.layers.0.mlp.down_proj.bias "
        "has no place in the model of config.json"
    )


def test_a_flag_without_its_bias_tensors_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path)
    set_flags(folder, attention_bias=True)
    with pytest.raises(WeightsError) as error:
        load_llama(folder)
    assert str(error.value) == (
        "model.safetensors: missing tensor model.layers.0.self_attn.q_proj.bias, "
        "model.layers.0.self_attn.k_proj.bias, model.layers.0.self_attn.v_proj.bias and 5 more"
    )


def test_an_unknown_tensor_is_refused_by_name_and_old_rotary_buffers_are_not(
    tmp_path: Path,
) -> None:
    folder = tiny_llama(tmp_path)
    expected = ours(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, file)
    assert torch.equal(ours(folder), expected)
    tensors["model.layers.2.mlp.up_proj.weight"] = torch.ones(128, 64)
    save_file(tensors, file)
    with pytest.raises(WeightsError) as error:
        load_llama(folder)
    assert str(error.value) == (
        "model.safetensors: tensor model.layers.2.mlp.up_proj.weight "
        "has no place in the model of config.json"
    )


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_half_types_are_read_as_they_are_and_as_fp32(
    tmp_path: Path, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_llama(tmp_path, torch_dtype=stored)
    name = "model.layers.0.mlp.up_proj.weight"
    up = load_file(folder / "model.safetensors")[name]
    assert up.dtype is getattr(torch, stored)
    weights = load_llama(folder, face="reference").weights
    assert torch.equal(weights.layers[0].gate_up.data[128:], up.float())
    assert caplog.records == []
    weights = load_llama(folder, torch.bfloat16, face="reference").weights
    assert torch.equal(weights.layers[0].gate_up.data[128:], up.bfloat16())
    casts = ["21 tensors are cast from F16 to torch.bfloat16"] if stored == "float16" else []
    assert [record.message for record in caplog.records] == casts
