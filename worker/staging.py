"""A step's columns, from the host to the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

_ALIGNMENT = 16  # bytes: at least the largest item, and what kernels like of a pointer
LANDING_BYTES = 1 << 20
_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class Staging:
    """`upload` gives the columns as tensors on the device, which hold until the next upload.

    On CUDA they are packed into one pinned buffer and cross in one copy, which the host does
    not wait for. The buffers are a ring of `depth + 1`, each reused after the event of its
    last copy, which with at most `depth` steps in flight has long passed. Columns come to lie one
    after the other in `landing` (bytes, always the same), unless they do not fit.
    """

    def __init__(self, device: torch.device, depth: int) -> None:
        self._ring: list[_PinnedBuffer] = []
        self._next = 0
        self.landing = torch.empty(0, dtype=torch.uint8)
        if device.type == "cuda":
            self.landing = torch.empty(LANDING_BYTES, dtype=torch.uint8, device=device)
            self._ring = [_PinnedBuffer(self.landing) for _ in range(depth + 1)]

    def fits(self, columns: Mapping[str, np.ndarray]) -> bool:
        """Whether `upload` of these columns goes to `landing`."""
        return _offsets(columns)[-1] <= self.landing.numel()

    def upload(self, columns: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        if not self._ring:
            return {name: _shared(column) for name, column in columns.items()}
        buffer = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        return buffer.upload(columns)


class _PinnedBuffer:
    def __init__(self, landing: torch.Tensor) -> None:
        self._landing = landing
        self._stream = torch.cuda.current_stream(landing.device)  # looked up once: that is slow
        self._copied = torch.cuda.Event()
        self._pinned = torch.empty(landing.numel(), dtype=torch.uint8, pin_memory=True)

    def upload(self, columns: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        offsets = _offsets(columns)
        size = offsets[-1]
        self._copied.synchronize()  # passed already, or never recorded
        if size > self._pinned.numel():
            self._pinned = torch.empty(
                1 << (size - 1).bit_length(), dtype=torch.uint8, pin_memory=True
            )
        host = self._pinned.numpy()
        for column, offset in zip(columns.values(), offsets, strict=False):
            host[offset : offset + column.nbytes] = column.reshape(-1).view(np.uint8)
        if size > self._landing.numel():
            packed = self._pinned[:size].to(self._landing.device, non_blocking=True)
        else:
            packed = self._landing[:size]
            packed.copy_(self._pinned[:size], non_blocking=True)
        self._copied.record(self._stream)
        typed = {
            dtype: packed.view(_DTYPES[dtype]) for dtype in {c.dtype for c in columns.values()}
        }
        return {
            name: _slice(typed[column.dtype], offset // column.itemsize, column)
            for (name, column), offset in zip(columns.items(), offsets, strict=False)
        }


def _offsets(columns: Mapping[str, np.ndarray]) -> list[int]:
    """Where each column begins, in bytes, and the size of all."""
    offsets = [0]
    for column in columns.values():
        end = offsets[-1] + column.nbytes
        offsets.append(end + -end % _ALIGNMENT)
    return offsets


def _slice(packed: torch.Tensor, start: int, column: np.ndarray) -> torch.Tensor:
    part = packed[start : start + column.size]
    return part if column.ndim == 1 else part.view(column.shape)


def _shared(column: np.ndarray) -> torch.Tensor:
    """The column's own memory, except that bytes from the wire are read-only, which a tensor
    cannot be."""
    return torch.from_numpy(column if column.flags.writeable else column.copy())
