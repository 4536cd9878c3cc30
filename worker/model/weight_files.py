"""The safetensors files of a model folder: which file holds which tensor, all checked by their
headers before any weight is read. A pickle is never opened."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from worker.model.errors import WeightsError

INDEX = "model.safetensors.index.json"
DTYPES = {"F32": 4, "BF16": 2, "F16": 2}  # bytes per value
_LFS_POINTER = b"version https://git-lfs"
_MOST_NAMED = 3  # names in one message

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: `start` and the end are offsets into the file."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str  # a key of DTYPES
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype]


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the model by name. The index decides where there is one; without one,
    exactly one safetensors file must be there.

    Raises WeightsError naming file and tensor.
    """
    index = folder / INDEX
    if index.is_file():
        return _indexed(folder, _read_index(index))
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return read_header(files[0])
    if files:
        raise WeightsError(
            f"{folder} has {len(files)} weight files ({named([f.name for f in files])}) and no "
            f"{INDEX} to say which tensor is in which: keep one file or add the index"
        )
    pickles = sorted(f.name for f in folder.iterdir() if f.suffix in (".bin", ".pt", ".pth"))
    if pickles:
        raise WeightsError(
            f"{folder} has weights as pickles only ({named(pickles)}), which can run code and are "
            f"never opened: convert them to safetensors"
        )
    raise WeightsError(f"{folder} has no weight file: expected model.safetensors or {INDEX}")


def named(names: list[str]) -> str:
    """The first few of `names`, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _read_index(index: Path) -> dict[str, str]:
    """The index's map of tensor name to file name, each file name inside the folder."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        entries = {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index.name} cannot be read: {error!r}") from error
    if not entries:
        raise WeightsError(f"{index.name} names no tensor")
    for name, file in entries.items():
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts:
            raise WeightsError(
                f"{index.name}: tensor {name} is in {file}, which is outside of the model folder"
            )
        if path.suffix != ".safetensors":
            raise WeightsError(
                f"{index.name}: tensor {name} is in {file}; only .safetensors files are opened"
            )
    return entries


def _indexed(folder: Path, entries: dict[str, str]) -> dict[str, StoredTensor]:
    missing = sorted({file for file in entries.values() if not (folder / file).is_file()})
    if missing:
        raise WeightsError(
            f"{missing[0]} is missing: {INDEX} names it for tensor "
            f"{next(name for name, file in entries.items() if file == missing[0])}"
            + (f" ({len(missing)} files are missing: {named(missing)})" if missing[1:] else "")
        )
    headers = {file: read_header(folder / file) for file in sorted(set(entries.values()))}
    absent = [(name, file) for name, file in entries.items() if name not in headers[file]]
    if absent:
        name, file = absent[0]
        raise WeightsError(f"{file} does not hold tensor {name}, for which {INDEX} names it")
    stray = sorted({file.name for file in folder.glob("*.safetensors")} - headers.keys())
    if stray:
        log.warning("not read, since %s does not name it: %s", INDEX, named(stray))
    copies = sorted(
        f"{name} in {file}"
        for file, header in headers.items()
        for name in header
        if entries.get(name) != file
    )
    if copies:
        log.warning("not read, since %s does not name it there: %s", INDEX, named(copies))
    return {name: headers[file][name] for name, file in entries.items()}


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one file. Layout: 8 bytes little-endian length n, n bytes of JSON, data.

    Raises WeightsError if the file is not whole.
    """
    size = file.stat().st_size
    if size == 0:
        raise WeightsError(f"{file.name} is empty: get it again")
    with file.open("rb") as stream:
        start = stream.read(len(_LFS_POINTER))
        if start == _LFS_POINTER:
            raise WeightsError(
                f"{file.name} is a Git LFS pointer, not the weights: run `git lfs pull`"
            )
        length = int.from_bytes(start[:8], "little")
        if not 2 <= length <= size - 8:
            raise WeightsError(
                f"{file.name} is no whole safetensors file: its {size} bytes cannot hold the "
                f"header of {length} bytes that it announces"
            )
        stream.seek(8)
        try:
            entries = json.loads(stream.read(length), object_pairs_hook=_no_name_twice)
            entries.pop("__metadata__", None)
            tensors = {
                name: _stored(name, file, entry, 8 + length) for name, entry in entries.items()
            }
        except WeightsError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{file.name} has a damaged header: {error!r}") from error
    if not tensors:
        raise WeightsError(f"{file.name} holds no tensor")
    _check_extent(file, size, 8 + length, list(tensors.values()))
    return tensors


def _no_name_twice(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _stored(name: str, file: Path, entry: dict, data: int) -> StoredTensor:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    if dtype not in DTYPES:
        raise WeightsError(
            f"{file.name}: tensor {name} has type {dtype}, which is not supported; "
            f"supported are {', '.join(DTYPES)}"
        )
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"tensor {name} has shape {shape}")
    start, end = entry["data_offsets"]
    tensor = StoredTensor(name, file, shape, dtype, data + start)
    if end - start != tensor.nbytes:
        raise ValueError(f"tensor {name} has {end - start} bytes for {list(shape)} {dtype}")
    return tensor


def _check_extent(file: Path, size: int, data: int, tensors: list[StoredTensor]) -> None:
    """The data must be the tensors one after another, without gap, overlap or rest."""
    end = data
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.nbytes)):
        if tensor.start != end:
            raise WeightsError(
                f"{file.name} has a damaged header: tensor {tensor.name} starts at byte "
                f"{tensor.start}, expected {end}"
            )
        end += tensor.nbytes
    if size < end:
        cut = next(t.name for t in tensors if t.start + t.nbytes > size)
        raise WeightsError(
            f"{file.name} is cut short: it has {size} of {end} bytes, so tensor {cut} is not "
            f"whole; get it again"
        )
    if size > end:
        raise WeightsError(
            f"{file.name} has {size - end} bytes after its last tensor: get it again"
        )
