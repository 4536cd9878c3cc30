"""The fingerprint by which scheduler and worker know that they serve the same model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def fingerprint(folder: Path) -> str:
    """Lower-case hexadecimal SHA-256 of config.json, parsed and written again with sorted keys and
    no spaces, so that layout and key order do not matter."""
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
