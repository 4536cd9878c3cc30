"""`python -m deploy.bench.profile.traced_worker FILE WORKER_FLAGS`: the worker as it is, with the
times of its steps written to FILE when it ends.

Once there is a file FILE.kernels, torch's profiler looks at the steps that it says
(deploy/bench/profile/kernel_times.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deploy.bench.profile.kernel_times import KernelTimes
from deploy.bench.profile.trace_file import TraceFile
from worker.__main__ import parse
from worker.address import ListenAddress
from worker.executor import Executor, Pending, StepOutput
from worker.geometry import Geometry
from worker.log import start_logging
from worker.process import ProcessOptions, exit_on_fatal, run
from worker.recorder import Recorders
from worker.start import make_watched_executor
from worker.step import CheckedStep
from worker.stop_signals import StopSignals

# Moments in ns: of a step's launch, and that its last repetition was found done.
COLUMNS = ("step_id", "launching", "launched", "done")


class TracedExecutor:
    """An Executor (worker/executor.py) over another."""

    def __init__(self, executor: Executor, trace: TraceFile, kernels: KernelTimes) -> None:
        self._executor = executor
        self._trace = trace
        self._kernels = kernels

    @property
    def geometry(self) -> Geometry:
        return self._executor.geometry

    def warm_up(self) -> None:
        self._executor.warm_up()

    def launch(self, step: CheckedStep) -> Sequence[Pending]:
        self._kernels.before_step(step)
        launching = time.monotonic_ns()
        pendings = self._executor.launch(step)
        launched = time.monotonic_ns()
        *others, last = pendings
        return [*others, _TracedPending(last, self._trace, step.step_id, launching, launched)]


class _TracedPending:
    def __init__(
        self, pending: Pending, trace: TraceFile, step_id: int, launching: int, launched: int
    ) -> None:
        self._pending = pending
        self._trace = trace
        self._before = step_id, launching, launched
        self._told = False

    @property
    def inline_ns(self) -> int:
        return self._pending.inline_ns

    def wait(self) -> StepOutput:
        output = self._pending.wait()
        if not self._told:
            self._told = True
            # A step that ran while it was launched was done then.
            launched = self._before[2]
            done = launched if self._pending.inline_ns else time.monotonic_ns()
            self._trace.add(*self._before, done)
        return output


class _Recorders(Recorders):
    """None, but for the worker's end, when the trace is written."""

    def __init__(self, trace: TraceFile, kernels: KernelTimes, path: Path) -> None:
        super().__init__()
        self._trace, self._kernels, self._path = trace, kernels, path

    def stop(self) -> None:
        super().stop()
        self._trace.kernels = self._kernels.found
        self._trace.save(self._path)


def main(arguments: list[str]) -> None:
    path = Path(arguments[0])
    signals = StopSignals()
    options = parse(arguments[1:])
    start_logging("info", options.log_format)
    trace, kernels = TraceFile(COLUMNS), KernelTimes(Path(f"{path}.kernels"))

    def make_executor() -> Executor:
        return TracedExecutor(make_watched_executor(options, exit_on_fatal), trace, kernels)

    recorders = _Recorders(trace, kernels, path)
    run(signals, ProcessOptions(ListenAddress(options.listen)), make_executor, recorders)


if __name__ == "__main__":
    main(sys.argv[1:])
