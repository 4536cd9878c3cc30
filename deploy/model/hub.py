"""A model from the Hugging Face hub, in the hub client's own cache."""

from __future__ import annotations

from pathlib import Path

from deploy.model.cache import FetchError, say

# Weights in safetensors only, and what describes them: a pickle is never downloaded.
_PATTERNS = ["*.safetensors", "*.json", "*.jinja"]


def fetch_from_hub(hub_id: str) -> Path:
    """Folder of `hub_id` (owner/name), downloaded unless the hub's cache has it."""
    import huggingface_hub

    say(f"fetch: getting {hub_id} from the Hugging Face hub (safetensors and json files only)")
    try:
        # Patterns match whole paths: subfolders hold copies in other formats.
        folder = Path(
            huggingface_hub.snapshot_download(
                hub_id, allow_patterns=_PATTERNS, ignore_patterns=["*/*"]
            )
        )
    except Exception as error:  # the client's errors have no common base
        raise FetchError(
            f"could not get {hub_id} from the hub ({type(error).__name__}: {error}); check the "
            f"name, the network and access rights (HF_TOKEN), or give a local folder instead"
        ) from error
    if not (folder / "config.json").is_file():
        raise FetchError(f"{hub_id} has no config.json: it is no Hugging Face model")
    return folder
