"""A step's columns, from the host to the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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

    def upload(self, columns: Mapping[str, np.ndarray]) -> Mapping[str, torch.Tensor]:
        if not self._ring:
            return {name: _shared(column) for name, column in columns.items()}
        buffer = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        return buffer.upload(columns)


class _Landed(Mapping[str, torch.Tensor]):
    """Columns on the device. A tensor is made when it is asked for: what a captured graph reads
    need not be one, and each view costs the host some microseconds."""

    def __init__(
        self, packed: torch.Tensor, columns: Mapping[str, np.ndarray], offsets: list[int]
    ) -> None:
        self._packed = packed  # bytes
        self._columns = columns
        self._offsets = dict(zip(columns, offsets, strict=False))
        self._made: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._made:
            column, start = self._columns[name], self._offsets[name]
            part = self._packed[start : start + column.nbytes].view(_DTYPES[column.dtype])
            self._made[name] = part if column.ndim == 1 else part.view(column.shape)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class _PinnedBuffer:
    def __init__(self, landing: torch.Tensor) -> None:
        self._landing = landing
        self._stream = torch.cuda.current_stream(landing.device)  # looked up once: that is slow
        self._copied = torch.cuda.Event()
        self._pinned = torch.empty(landing.numel(), dtype=torch.uint8, pin_memory=True)
        # The first so many bytes here and there: steady decodes come in one size.
        self._views: tuple[int, torch.Tensor, torch.Tensor] = (0, self._pinned[:0], landing[:0])

    def upload(self, columns: Mapping[str, np.ndarray]) -> _Landed:
        offsets = _offsets(columns)
        size = offsets[-1]
        self._copied.synchronize()  # passed already, or never recorded
        if size > self._pinned.numel():
            self._pinned = torch.empty(
                1 << (size - 1).bit_length(), dtype=torch.uint8, pin_memory=True
            )
            self._views = (0, self._pinned[:0], self._landing[:0])
        host = self._pinned.numpy()
        for column, offset in zip(columns.values(), offsets, strict=False):
            host[offset : offset + column.nbytes] = column.reshape(-1).view(np.uint8)
        packed = self._copy(size)
        self._copied.record(self._stream)
        return _Landed(packed, columns, offsets)

    def _copy(self, size: int) -> torch.Tensor:
        """The first `size` bytes on the device."""
        if size > self._landing.numel():
            return self._pinned[:size].to(self._landing.device, non_blocking=True)
        if size != self._views[0]:
            self._views = (size, self._pinned[:size], self._landing[:size])
        _, here, there = self._views
        there.copy_(here, non_blocking=True)
        return there


def _offsets(columns: Mapping[str, np.ndarray]) -> list[int]:
    """Where each column begins, in bytes, and the size of all."""
    offsets = [0]
    for column in columns.values():
        end = offsets[-1] + column.nbytes
        offsets.append(end + -end % _ALIGNMENT)
    return offsets


def _shared(column: np.ndarray) -> torch.Tensor:
    """The column's own memory, except that bytes from the wire are read-only, which a tensor
    cannot be."""
    return torch.from_numpy(column if column.flags.writeable else column.copy())
