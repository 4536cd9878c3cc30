"""The rotary embedding's settings, from either spelling of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worker.model.errors import ConfigError

ROPE_TYPES = ("default", "linear", "dynamic", "llama3")
_DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Type and numbers of the rotary embedding; `original_len` is the context that the model was
    first trained for. The last three are used by llama3 only."""

    rope_type: str = "default"
    theta: float = _DEFAULT_THETA
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_len: int = 0

    @classmethod
    def from_config(cls, raw: Mapping[str, object], max_position_embeddings: int) -> RopeConfig:
        """Reads `rope_parameters` or its older spelling `rope_scaling`, with `rope_theta` inside
        or beside it (inside wins). Raises ConfigError."""
        key, values = _settings(raw)
        rope_type = values.get("rope_type", values.get("type", "default"))
        if rope_type not in ROPE_TYPES:
            raise ConfigError(
                f"config.json: {key} has rope_type {rope_type!r}, which is not supported; "
                f"supported are {', '.join(ROPE_TYPES)}"
            )
        partial = values.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
        if partial not in (None, 1, 1.0):
            raise ConfigError(
                f"config.json: partial_rotary_factor {partial!r} is not supported, must be 1"
            )
        theta = values.get("rope_theta", raw.get("rope_theta"))
        theta = _number("rope_theta", _DEFAULT_THETA if theta is None else theta)
        original = raw.get("original_max_position_embeddings")
        if original is None:
            original = values.get("original_max_position_embeddings")
        if original is None:
            original = max_position_embeddings
        if type(original) is not int or original < 1:
            raise ConfigError(
                f"config.json: original_max_position_embeddings is {original!r}, "
                f"must be a whole number of at least 1"
            )
        if rope_type == "default":
            return cls(theta=theta, original_len=original)

        def number(name: str) -> float:
            return _number(f"{key}.{name}", values.get(name))

        factor = number("factor")
        if rope_type != "llama3":
            return cls(rope_type, theta, factor, original_len=original)
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if high <= low:
            raise ConfigError(
                f"config.json: {key}.high_freq_factor is {high}, "
                f"must be over low_freq_factor ({low})"
            )
        return cls(rope_type, theta, factor, low, high, original)


def _settings(raw: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """The spelling that config.json uses and its values."""
    given = {}
    for key in ("rope_parameters", "rope_scaling"):
        values = raw.get(key)
        if values is not None and not isinstance(values, Mapping):
            raise ConfigError(f"config.json: {key} is {values!r}, must be an object or null")
        if values:
            given[key] = values
    if len(given) == 2 and given["rope_parameters"] != given["rope_scaling"]:
        raise ConfigError(
            f"config.json: rope_parameters {given['rope_parameters']!r} and "
            f"rope_scaling {given['rope_scaling']!r} disagree; keep one of them"
        )
    return next(iter(given.items()), ("rope_parameters", {}))


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise ConfigError(f"config.json: {key} is {value!r}, must be a number over 0")
    return float(value)
