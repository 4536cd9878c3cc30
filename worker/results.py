"""Sampled tokens, from the device to the host."""

from __future__ import annotations

import threading
import time

import numpy as np
import torch

from worker.executor import StepOutput


class CpuPending:
    """A step that ran while it was launched: its tensors are the result."""

    def __init__(
        self, sampled: torch.Tensor, device_ns: int, sample_ns: int, idle_ns: int | None
    ) -> None:
        self._output = _output(sampled.numpy(), device_ns, sample_ns, idle_ns)
        self.inline_ns = device_ns + sample_ns

    def wait(self) -> StepOutput:
        return self._output


class CudaPending:
    """A result on its way into a pinned buffer."""

    inline_ns = 0

    def __init__(self, buffer: ResultBuffer, count: int) -> None:
        self._buffer = buffer
        self._count = count
        self._lock = threading.Lock()
        self._output: StepOutput | None = None

    def wait(self) -> StepOutput:
        with self._lock:
            if self._output is None:
                self._output = self._buffer.read(self._count)
            return self._output


class ResultBuffer:
    """One pinned buffer with the events of one repetition."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)  # looked up once: that is slow
        self._host = torch.empty(max_rows, dtype=torch.int32, pin_memory=True)
        self._views: dict[int, torch.Tensor] = {}  # of the first so many, each made once
        self._tokens = self._host.numpy()
        self._started, self._computed, self._sampled = (
            torch.cuda.Event(enable_timing=True) for _ in range(3)
        )
        self._copied: torch.cuda.Event | None = None
        self._copied_before: torch.cuda.Event | None = None
        self.pending: CudaPending | None = None

    def start(self, before: ResultBuffer) -> None:
        """Frees the buffer: a result that no stream asked for is kept by its Pending. `before`
        is the buffer of the repetition before this one."""
        if self.pending:
            self.pending.wait()
        self._copied_before = before._copied
        self._is_apart = False
        self._started.record(self._stream)

    def computed(self) -> None:
        """Tells the forward from the sampling that follows."""
        self._is_apart = True
        self._computed.record(self._stream)

    def finish(self, sampled: torch.Tensor, count: int) -> CudaPending:
        """The result is the first `count` of `sampled`."""
        self._sampled.record(self._stream)
        size = len(sampled)
        if size not in self._views:
            self._views[size] = self._host[:size]
        self._views[size].copy_(sampled, non_blocking=True)
        # Each time another event: the next buffer compares with this one, whenever it is read.
        self._copied = torch.cuda.Event(enable_timing=True)
        self._copied.record(self._stream)
        self.pending = CudaPending(self, count)
        return self.pending

    def read(self, count: int) -> StepOutput:
        self._copied.synchronize()
        computed, sample_ns = self._sampled, 0
        if self._is_apart:
            computed = self._computed
            sample_ns = round(computed.elapsed_time(self._sampled) * 1e6)
        device_ns = round(self._started.elapsed_time(computed) * 1e6)
        idle_ns = None
        if self._copied_before:
            idle_ns = round(self._copied_before.elapsed_time(self._started) * 1e6)
        return _output(self._tokens[:count].copy(), device_ns, sample_ns, idle_ns)


class CpuClock:
    """The interface of ResultBuffer where the forward runs on the calling thread."""

    def __init__(self) -> None:
        self._done_ns: int | None = None

    def start(self, before: CpuClock) -> None:
        self._started_ns = time.monotonic_ns()
        self._idle_ns = None if before._done_ns is None else self._started_ns - before._done_ns

    def computed(self) -> None:
        self._computed_ns = time.monotonic_ns()

    def finish(self, sampled: torch.Tensor, count: int) -> CpuPending:
        self._done_ns = time.monotonic_ns()
        return CpuPending(
            sampled[:count],
            self._computed_ns - self._started_ns,
            self._done_ns - self._computed_ns,
            self._idle_ns,
        )


def _output(sampled: np.ndarray, device_ns: int, sample_ns: int, idle_ns: int | None) -> StepOutput:
    """-1 marks a row that was not finite (worker/sampler.py)."""
    non_finite = sampled < 0
    if not non_finite.any():
        return StepOutput(sampled, None, device_ns, sample_ns, idle_ns)
    tokens = np.where(non_finite, np.int32(0), sampled)
    return StepOutput(tokens, non_finite, device_ns, sample_ns, idle_ns)
