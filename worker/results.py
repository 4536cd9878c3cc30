"""Sampled tokens, from the device to the host."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import torch

from worker.draw_extras import DrawExtras
from worker.executor import Logprobs, StepOutput
from worker.new_rows import MAX_TOP_LOGPROBS


@dataclass(frozen=True, slots=True)
class LoggedDraws:
    """Log-probabilities on the device, as `kernels.reference.top_logprobs` packs them."""

    extras: DrawExtras
    packed: torch.Tensor  # int32 [w, 2, 1 + the most that any wants]

    def on_host(self, packed: np.ndarray, non_finite: np.ndarray | None) -> Logprobs:
        """What each asked for, from a copy of `packed`. A row that was not finite has none."""
        samples, counts = self.extras.logged, self.extras.logprob_counts
        if non_finite is not None:
            good = ~non_finite[samples]
            samples, counts, packed = samples[good], counts[good], packed[good]
        wanted = np.arange(packed.shape[2]) < counts[:, None]
        values = packed[:, 1].view(np.float32)[wanted]
        return Logprobs(samples.astype(np.int32), counts, packed[:, 0][wanted], values)


class CpuPending:
    """A step that ran while it was launched: its tensors are the result."""

    def __init__(
        self,
        sampled: torch.Tensor,
        logged: LoggedDraws | None,
        device_ns: int,
        sample_ns: int,
        idle_ns: int | None,
    ) -> None:
        packed = None if logged is None else logged.packed.numpy()
        self._output = _output(sampled.numpy(), logged, packed, device_ns, sample_ns, idle_ns)
        self.inline_ns = device_ns + sample_ns

    def wait(self) -> StepOutput:
        return self._output


class CudaPending:
    """A result on its way into a pinned buffer."""

    inline_ns = 0

    def __init__(self, buffer: ResultBuffer, count: int, logged: LoggedDraws | None) -> None:
        self._buffer = buffer
        self._count = count
        self._logged = logged
        self._lock = threading.Lock()
        self._output: StepOutput | None = None

    def wait(self) -> StepOutput:
        with self._lock:
            if self._output is None:
                self._output = self._buffer.read(self._count, self._logged)
                self._logged = None  # its tensor goes back
            return self._output


class ResultBuffer:
    """One pinned buffer with the events of one repetition."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)  # looked up once: that is slow
        self._host = torch.empty(max_rows, dtype=torch.int32, pin_memory=True)
        self._views: dict[int, torch.Tensor] = {}  # of the first so many, each made once
        self._tokens = self._host.numpy()
        most = max_rows * 2 * (1 + MAX_TOP_LOGPROBS)
        self._packed = torch.empty(most, dtype=torch.int32, pin_memory=True)  # log-probabilities
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

    def finish(
        self, sampled: torch.Tensor, count: int, logged: LoggedDraws | None = None
    ) -> CudaPending:
        """The result is the first `count` of `sampled`, with the log-probabilities `logged`."""
        self._sampled.record(self._stream)
        size = len(sampled)
        if size not in self._views:
            self._views[size] = self._host[:size]
        self._views[size].copy_(sampled, non_blocking=True)
        if logged is not None:
            packed = logged.packed.view(-1)
            self._packed[: len(packed)].copy_(packed, non_blocking=True)
        # Each time another event: the next buffer compares with this one, whenever it is read.
        self._copied = torch.cuda.Event(enable_timing=True)
        self._copied.record(self._stream)
        self.pending = CudaPending(self, count, logged)
        return self.pending

    def read(self, count: int, logged: LoggedDraws | None) -> StepOutput:
        self._copied.synchronize()
        computed, sample_ns = self._sampled, 0
        if self._is_apart:
            computed = self._computed
            sample_ns = round(computed.elapsed_time(self._sampled) * 1e6)
        device_ns = round(self._started.elapsed_time(computed) * 1e6)
        idle_ns = None
        if self._copied_before:
            idle_ns = round(self._copied_before.elapsed_time(self._started) * 1e6)
        tokens, packed = self._tokens[:count].copy(), None
        if logged is not None:
            size = logged.packed.numel()
            packed = self._packed[:size].numpy().reshape(logged.packed.shape)
        return _output(tokens, logged, packed, device_ns, sample_ns, idle_ns)


class CpuClock:
    """The interface of ResultBuffer where the forward runs on the calling thread."""

    def __init__(self) -> None:
        self._done_ns: int | None = None

    def start(self, before: CpuClock) -> None:
        self._started_ns = time.monotonic_ns()
        self._idle_ns = None if before._done_ns is None else self._started_ns - before._done_ns

    def computed(self) -> None:
        self._computed_ns = time.monotonic_ns()

    def finish(
        self, sampled: torch.Tensor, count: int, logged: LoggedDraws | None = None
    ) -> CpuPending:
        self._done_ns = time.monotonic_ns()
        return CpuPending(
            sampled[:count],
            logged,
            self._computed_ns - self._started_ns,
            self._done_ns - self._computed_ns,
            self._idle_ns,
        )


def _output(
    sampled: np.ndarray,
    logged: LoggedDraws | None,
    packed: np.ndarray | None,
    device_ns: int,
    sample_ns: int,
    idle_ns: int | None,
) -> StepOutput:
    """-1 marks a row that was not finite (worker/sampler.py). `packed` is overwritten later."""
    tokens, non_finite = sampled, None
    if (negative := sampled < 0).any():
        tokens, non_finite = np.where(negative, np.int32(0), sampled), negative
    logprobs = None
    if logged is not None and packed is not None:
        logprobs = logged.on_host(packed, non_finite)
    return StepOutput(tokens, non_finite, device_ns, sample_ns, idle_ns, logprobs)
