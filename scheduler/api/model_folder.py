"""The part of a Hugging Face model folder that is about text: small JSON files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ModelFolderError(Exception):
    """A file of the model folder is missing or damaged; the message names it."""


@dataclass(frozen=True)
class ModelFolder:
    """What the front end reads of a model: everything but the weights.

    `name` is the folder's, or the hub id if it is a snapshot in the hub's cache.
    `end_ids` are the ids that end an output: generation_config.json's eos_token_id,
    else config.json's. The tokenizer's own end token is not asked, since converted
    chat models often name another one there. `fingerprint` is the sha256 (hex) of
    config.json written canonically, by which a scheduler knows a worker's model.
    """

    path: Path
    name: str
    fingerprint: str
    end_ids: frozenset[int]
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    special_tokens_map: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @classmethod
    def read(cls, folder: str | Path) -> ModelFolder:
        path = Path(folder).resolve()
        if not path.is_dir():
            raise ModelFolderError(f"--model {folder}: no such folder")
        config = _read_json(path / "config.json")
        if config is None:
            raise ModelFolderError(f"{path / 'config.json'}: missing; is this a model folder?")
        tokenizer_config = _read_json(path / "tokenizer_config.json") or {}
        return cls(
            path=path,
            name=_served_name(path),
            fingerprint=_fingerprint(config),
            end_ids=_end_ids(path, config),
            tokenizer_config=tokenizer_config,
            special_tokens_map=_read_json(path / "special_tokens_map.json") or {},
            chat_template=_chat_template(path, tokenizer_config),
        )


def _served_name(path: Path) -> str:
    """The hub's cache keeps models--OWNER--NAME/snapshots/COMMIT; old models have no
    owner, and a name may hold "--" itself."""
    repository = path.parent.parent.name
    if path.parent.name != "snapshots" or not repository.startswith("models--"):
        return path.name
    return repository.removeprefix("models--").replace("--", "/", 1)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path}: holds {type(value).__name__}, not an object")
    return value


def _fingerprint(config: dict[str, Any]) -> str:
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _end_ids(path: Path, config: dict[str, Any]) -> frozenset[int]:
    generation_config = _read_json(path / "generation_config.json") or {}
    for name, source in (("generation_config.json", generation_config), ("config.json", config)):
        value = source.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(token_id) is int and 0 <= token_id < 2**31 for token_id in ids):
            raise ModelFolderError(
                f"{path / name}: eos_token_id is {value!r}, not a token id or a list of them"
            )
        return frozenset(ids)
    return frozenset()


def _chat_template(path: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """The default template: a file of its own, else an entry of tokenizer_config.json
    (a string, or a list of named templates)."""
    try:
        return (path / "chat_template.jinja").read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path / 'chat_template.jinja'}: {error}") from error
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelFolderError(f"{path / 'tokenizer_config.json'}: chat_template is not text")
    return value
