"""What the model is: config.json, checked once. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.model.errors import ConfigError
from worker.model.rope_config import RopeConfig

ARCHITECTURE = "LlamaForCausalLM"
DTYPES = ("float32", "bfloat16", "float16")

# Keys that change the forward in a way that is not built, each with the values that do not.
_UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu", "swish"),  # two names of one function
    "pretraining_tp": (None, 1),
    "quantization_config": (None,),
    "sliding_window": (None,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "num_local_experts": (None, 0),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and settings of a Llama. `max_model_len` is the most tokens that a row may hold."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    max_model_len: int
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str  # "float32", "bfloat16" or "float16"

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"config.json: num_attention_heads {self.num_heads} is no multiple of "
                f"num_key_value_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(
                f"config.json: head_dim {self.head_dim} is odd; rotary embeddings need an even one"
            )
        if not 2 <= self.max_model_len <= self.context_limit:
            raise ConfigError(
                f"max_model_len is {self.max_model_len}, must be 2 to {self.context_limit} "
                f"for this model ({self._limit_reason})"
            )

    @classmethod
    def from_folder(cls, folder: Path | str, max_model_len: int | None = None) -> ModelConfig:
        """Reads a Hugging Face folder. `max_model_len` None takes the model's own.

        Raises ConfigError naming key and value for what is damaged or not supported.
        """
        raw = read_json(Path(folder) / "config.json")
        _check_supported(raw)
        heads = _whole(raw, "num_attention_heads")
        hidden = _whole(raw, "hidden_size")
        positions = _whole(raw, "max_position_embeddings", default=2048)
        rope = RopeConfig.from_config(raw, positions)
        own_len = min(positions, rope.original_len) if rope.rope_type == "dynamic" else positions
        return cls(
            vocab_size=_whole(raw, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_whole(raw, "intermediate_size"),
            num_layers=_whole(raw, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_whole(raw, "num_key_value_heads", default=heads),
            head_dim=_whole(raw, "head_dim", default=_head_dim(raw, hidden, heads)),
            rms_norm_eps=_epsilon(raw),
            max_position_embeddings=positions,
            max_model_len=own_len if max_model_len is None else max_model_len,
            rope=rope,
            tie_word_embeddings=_flag(raw, "tie_word_embeddings"),
            attention_bias=_flag(raw, "attention_bias"),
            mlp_bias=_flag(raw, "mlp_bias"),
            dtype=_dtype(raw),
        )

    @property
    def context_limit(self) -> int:
        """Largest max_model_len that the rotary embedding is right for."""
        if self.rope.rope_type == "dynamic":
            # Beyond it the angles of all positions depend on the row's length, so K in the pool
            # would have to be rotated again with each token.
            return min(self.max_position_embeddings, self.rope.original_len)
        if self.rope.rope_type == "linear":
            # Some configs give the stretched length as max_position_embeddings, some the first.
            return int(self.max_position_embeddings * max(self.rope.factor, 1.0))
        return self.max_position_embeddings

    @property
    def _limit_reason(self) -> str:
        if self.rope.rope_type == "dynamic":
            return "dynamic rope is served up to the original context"
        if self.rope.rope_type == "linear":
            return "max_position_embeddings times the linear rope factor"
        return "max_position_embeddings"

    @property
    def query_size(self) -> int:
        """Columns of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all K heads (or all V heads) together."""
        return self.num_kv_heads * self.head_dim


def read_json(path: Path) -> dict[str, Any]:
    """A file of a model's folder. Raises ConfigError if it is not there, or no JSON object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist: give a Hugging Face model folder with {path.name}"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return values


def _check_supported(raw: Mapping[str, object]) -> None:
    architectures = raw.get("architectures") or [ARCHITECTURE]
    if not isinstance(architectures, list) or ARCHITECTURE not in architectures:
        raise ConfigError(
            f"config.json: architectures is {architectures!r}, only {ARCHITECTURE} is supported"
        )
    if raw.get("model_type") != "llama":
        raise ConfigError(
            f"config.json: model_type is {raw.get('model_type')!r}, only 'llama' is supported"
        )
    for key, harmless in _UNSUPPORTED.items():
        if key in raw and raw[key] not in harmless:
            allowed = " or ".join("absent" if value is None else repr(value) for value in harmless)
            raise ConfigError(
                f"config.json: {key} is {raw[key]!r}, which is not supported; must be {allowed}"
            )


def _whole(raw: Mapping[str, object], key: str, default: int | None = None) -> int:
    """A whole number of at least 1; absent and null take the default."""
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 1 <= value < 2**31:
        raise ConfigError(
            f"config.json: {key} is {value!r}, must be a whole number of at least 1 (below 2^31)"
        )
    return value


def _head_dim(raw: Mapping[str, object], hidden: int, heads: int) -> int:
    """hidden / heads, for configs that do not give head_dim."""
    if raw.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads} "
            f"and head_dim is not given"
        )
    return hidden // heads


def _flag(raw: Mapping[str, object], key: str) -> bool:
    value = raw.get(key)
    if value is None:
        return False
    if type(value) is not bool:
        raise ConfigError(f"config.json: {key} is {value!r}, must be true or false")
    return value


def _epsilon(raw: Mapping[str, object]) -> float:
    value = raw.get("rms_norm_eps", 1e-6)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(f"config.json: rms_norm_eps is {value!r}, must be a number from 0 to 1")
    return float(value)


def _dtype(raw: Mapping[str, object]) -> str:
    """`dtype` or its older spelling `torch_dtype`; absent is float32."""
    key = "dtype" if raw.get("dtype") is not None else "torch_dtype"
    value = raw.get(key)
    if value is None:
        return "float32"
    if value not in DTYPES:
        raise ConfigError(
            f"config.json: {key} is {value!r}, which is not supported; "
            f"supported are {', '.join(DTYPES)}"
        )
    return str(value)
