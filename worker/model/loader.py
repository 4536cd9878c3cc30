"""Reads the safetensors of a model folder into the weights that the forward uses.

Each weight is filled, packed by the op table and let go of before the next, so the model is never
in memory twice.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from kernels import Ops
from worker.model.config import ModelConfig
from worker.model.errors import WeightsError
from worker.model.load_progress import LoadProgress
from worker.model.weight_files import StoredTensor, find_tensors, named
from worker.model.weights import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    FusedTensor,
    LayerWeights,
    LlamaWeights,
    layer_prefix,
    layer_tensors,
)

_MOST_READERS = 8
# Buffers that old checkpoints store and that the config already tells.
_IGNORED_SUFFIX = "rotary_emb.inv_freq"
_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

log = logging.getLogger(__name__)


def load_weights(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str,
    ops: Ops,
    progress: bool = True,
) -> LlamaWeights:
    """The weights of `folder` as `dtype` on `device`, packed for `ops`.

    With `progress` it is shown (worker/model/load_progress.py). Raises WeightsError, naming
    file and tensor, unless every tensor that `config` asks for is there exactly once.
    """
    stored = find_tensors(Path(folder))
    check_tensors(stored, config)
    started = time.monotonic()
    total = sum(tensor.nbytes for tensor in stored.values())
    log.info("loading %d tensors, %.2f GB, from %s", len(stored), total / 1e9, folder)
    _log_casts(stored, dtype)
    weights = _Reader(stored, config, dtype, device, ops).load(total, progress)
    log.info("weights loaded in %.1f s", time.monotonic() - started)
    return weights


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this config must hold."""
    shapes = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        for fused in layer_tensors(config):
            for name, rows in fused.parts:
                shapes[layer_prefix(layer) + name] = fused.shape_of(rows)
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def check_tensors(stored: dict[str, StoredTensor], config: ModelConfig) -> None:
    """Holds the stored tensors to the config: none missing, none extra, all of the right shape.

    Raises WeightsError.
    """
    shapes = expected_shapes(config)
    missing = [name for name in shapes if name not in stored]
    if missing:
        files = sorted({tensor.file.name for tensor in stored.values()})
        reason = " (config.json does not tie it to the embedding)" if missing == [HEAD] else ""
        raise WeightsError(f"{named(files)}: missing tensor {named(missing)}{reason}")
    if config.tie_word_embeddings:
        shapes[HEAD] = shapes[EMBEDDING]
    for name, tensor in stored.items():
        if name.endswith(_IGNORED_SUFFIX):
            continue
        if name not in shapes:
            raise WeightsError(
                f"{tensor.file.name}: tensor {name} has no place in the model of config.json"
            )
        if tensor.shape != shapes[name]:
            raise WeightsError(
                f"{tensor.file.name}: tensor {name} has shape {list(tensor.shape)}, "
                f"config.json asks for {list(shapes[name])}"
            )


def _log_casts(stored: dict[str, StoredTensor], dtype: torch.dtype) -> None:
    if dtype is torch.float32:
        return
    types = Counter(tensor.dtype for tensor in stored.values())
    for name, count in types.items():
        if _TYPES[name] is not dtype:
            log.warning("%d tensors are cast from %s to %s", count, name, dtype)


class _Reader:
    """Fills and packs weights, several at a time."""

    def __init__(
        self,
        stored: dict[str, StoredTensor],
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device | str,
        ops: Ops,
    ) -> None:
        self._stored, self._config, self._ops = stored, config, ops
        self._dtype, self._device = dtype, device
        self._files: dict[Path, Any] = {}
        for tensor in stored.values():
            if tensor.file not in self._files:
                self._files[tensor.file] = _open(tensor.file)

    def load(self, total: int, progress: bool) -> LlamaWeights:
        config = self._config
        readers = min(_MOST_READERS, os.cpu_count() or 1)
        with (
            LoadProgress(total, progress) as shown,
            ThreadPoolExecutor(readers, "weights") as executor,
        ):
            jobs: dict[Future[Any], int] = {}

            def start(job: Callable[..., Any], *arguments: Any, names: list[str]) -> Future[Any]:
                future = executor.submit(job, *arguments)
                jobs[future] = sum(self._stored[name].nbytes for name in names)
                return future

            layers = [
                {
                    fused.field: start(self._fused, layer, fused, names=self._names(layer, fused))
                    for fused in layer_tensors(config)
                }
                for layer in range(config.num_layers)
            ]
            ends = start(self._ends, names=[n for n in (EMBEDDING, HEAD) if n in self._stored])
            final_norm = start(self._fill, [FINAL_NORM], names=[FINAL_NORM])
            try:
                for future in as_completed(jobs):
                    future.result()
                    shown.add(jobs[future])
            except BaseException:
                executor.shutdown(cancel_futures=True)
                raise
        embedding, head = ends.result()
        return LlamaWeights(
            embedding=embedding,
            layers=tuple(_layer({f: w.result() for f, w in fields.items()}) for fields in layers),
            final_norm=final_norm.result(),
            head=head,
        )

    def _names(self, layer: int, fused: FusedTensor) -> list[str]:
        return [layer_prefix(layer) + name for name, _ in fused.parts]

    def _fused(self, layer: int, fused: FusedTensor) -> Any:
        weight = self._fill(self._names(layer, fused))
        return weight if fused.columns is None else self._ops.pack_weight(weight)

    def _ends(self) -> tuple[torch.Tensor, Any]:
        """Embedding and head: one tensor where they are tied and nothing else is stored."""
        embedding = self._fill([EMBEDDING])
        if self._config.tie_word_embeddings and not self._head_differs():
            return embedding, self._ops.pack_weight(embedding)
        return embedding, self._ops.pack_weight(self._fill([HEAD]))

    def _head_differs(self) -> bool:
        if HEAD not in self._stored:
            return False
        embedding, head = self._read(EMBEDDING), self._read(HEAD)
        if torch.equal(embedding.to(self._dtype), head.to(self._dtype)):
            return False
        log.warning(
            "config.json ties %s (%s) to %s (%s), but their values differ: the head is used as "
            "stored; set tie_word_embeddings to false",
            HEAD,
            self._stored[HEAD].file.name,
            EMBEDDING,
            self._stored[EMBEDDING].file.name,
        )
        return True

    def _fill(self, names: list[str]) -> torch.Tensor:
        """The named tensors stacked by rows, as dtype on device."""
        rows = [self._stored[name].shape[0] for name in names]
        shape = (sum(rows), *self._stored[names[0]].shape[1:])
        weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        for part, name in zip(weight.split(rows), names, strict=True):
            part.copy_(self._read(name))
        return weight

    def _read(self, name: str) -> torch.Tensor:
        file = self._stored[name].file
        try:
            return self._files[file].get_tensor(name)
        except SafetensorError as error:
            raise WeightsError(f"{file.name}: tensor {name} cannot be read: {error}") from error


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{file.name} cannot be read: {error}") from error


def _layer(fields: dict[str, Any]) -> LayerWeights:
    biases = dict.fromkeys(("qkv_bias", "out_bias", "gate_up_bias", "down_bias"))
    return LayerWeights(**(biases | fields))
