"""A model that takes seconds to load, made at once."""

from __future__ import annotations

import json
import math
from pathlib import Path

from deploy.model.random_llama import SHAPES, tensor_shapes, write_config

TENSORS = 146


def slow_llama(folder: Path) -> None:
    """Writes Llama-3.2-1B's shape into `folder`: 2.5 GB of zeros, which take no room on a disk
    that has sparse files."""
    config = SHAPES["1b"]
    write_config(folder, config)
    header, end = {}, 0
    for name, shape in tensor_shapes(config).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    data = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(data).to_bytes(8, "little") + data)
        file.truncate(8 + len(data) + end)
