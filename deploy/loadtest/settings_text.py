"""A run's settings in words, and flat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LINES = ("target", "arrivals", "content", "server", "machine")
# Of a server's status, what it is; the rest is how it fared up to then.
_SERVER = (
    "model",
    "max_model_len",
    "vocab_size",
    "max_rows",
    "block_size",
    "usable_blocks",
    "worker_device",
)


def comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between any two runs."""
    kept = dict(settings)
    if server := settings.get("server"):
        kept["server"] = {name: server[name] for name in _SERVER if name in server}
    if machine := settings.get("machine"):
        kept["machine"] = {name: value for name, value in machine.items() if name != "date"}
    return kept


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by dots: {"a": {"b": 1}} is {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def settings_lines(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values for a table: what matters most in lines of its own, the rest in
    one. What is off or unset is not named; the seed always is."""
    settings = comparable(settings)
    for name in _LINES:
        if settings.get(name):
            yield name, describe(settings[name])
    rest = {k: v for k, v in settings.items() if k not in (*_LINES, "goodput", "seed")}
    seed = f"seed {settings['seed']}" if "seed" in settings else ""
    yield "settings", ", ".join(filter(None, [seed, _pairs(rest)]))


def one_line(settings: dict[str, Any]) -> str:
    """What a plot says of its run."""
    seed = {"seed": f"seed {settings.get('seed', '?')}"}
    named = settings | seed
    return ", ".join(
        describe(named[x]) for x in ("target", "arrivals", "seed", "content") if x in named
    )


def describe(value: Any) -> str:
    """A value of the settings; {"kind": "Open", "rate": 2.0} is "Open (rate 2)"."""
    if isinstance(value, dict):
        kind, pairs = value.get("kind", ""), _pairs(value)
        return f"{kind} ({pairs})" if kind and pairs else kind or pairs
    if isinstance(value, list):
        return " ".join(describe(item) for item in value)
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {describe(value)}"
        for name, value in values.items()
        if name != "kind" and value not in (None, 0, "", {}, [])
    )
