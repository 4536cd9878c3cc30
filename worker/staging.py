"""A step's columns, from the host to the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

_ALIGNMENT = 8  # bytes: the largest item, an int64
_FIRST_BYTES = 1 << 20
_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class Staging:
    """`upload` gives the columns as tensors on the device.

    On CUDA they are packed into one pinned buffer and cross in one copy, which the host does
    not wait for. The buffers are a ring of `depth + 1`, each reused after the event of its
    last copy, which with at most `depth` steps in flight has long passed.
    """

    def __init__(self, device: torch.device, depth: int) -> None:
        self._device = device
        self._ring: list[_PinnedBuffer] = []
        if device.type == "cuda":
            self._ring = [_PinnedBuffer(device) for _ in range(depth + 1)]
        self._next = 0

    def upload(self, columns: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        if not self._ring:
            return {name: _shared(column) for name, column in columns.items()}
        buffer = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        return buffer.upload(columns)


class _PinnedBuffer:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.current_stream(device)  # looked up once: that is slow
        self._copied = torch.cuda.Event()
        self._pinned = torch.empty(_FIRST_BYTES, dtype=torch.uint8, pin_memory=True)

    def upload(self, columns: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        offsets = [0]
        for column in columns.values():
            end = offsets[-1] + column.nbytes
            offsets.append(end + -end % _ALIGNMENT)
        self._copied.synchronize()  # passed already, or never recorded
        if offsets[-1] > self._pinned.numel():
            size = 1 << (offsets[-1] - 1).bit_length()
            self._pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        host = self._pinned.numpy()
        for column, offset in zip(columns.values(), offsets, strict=False):
            host[offset : offset + column.nbytes] = column.reshape(-1).view(np.uint8)
        packed = self._pinned[: offsets[-1]].to(self._device, non_blocking=True)
        self._copied.record(self._stream)
        typed = {
            dtype: packed.view(_DTYPES[dtype]) for dtype in {c.dtype for c in columns.values()}
        }
        return {
            name: _slice(typed[column.dtype], offset // column.itemsize, column)
            for (name, column), offset in zip(columns.items(), offsets, strict=False)
        }


def _slice(packed: torch.Tensor, start: int, column: np.ndarray) -> torch.Tensor:
    part = packed[start : start + column.size]
    return part if column.ndim == 1 else part.view(column.shape)


def _shared(column: np.ndarray) -> torch.Tensor:
    """The column's own memory, except that bytes from the wire are read-only, which a tensor
    cannot be."""
    return torch.from_numpy(column if column.flags.writeable else column.copy())
