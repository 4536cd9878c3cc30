"""`python -m deploy.bench.recording`: what `--record` and `--dump-dir` cost a worker's steps.

Simulated workers, one that records nothing and one for each of the flags, run side by side; only
one of them gets steps at a time: decodes of as many rows as --rows, three in flight, as fast as
they are answered. Windows take turns. Two costs are told against the first worker, each as the
median over rounds with its 95 % interval by bootstrap: of time, and of the worker's CPU time for
a step, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import queue
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil

from deploy.bench.interval import median_interval
from deploy.local.child import Child
from nanoserve.v1 import worker_pb2, worker_pb2_grpc

_BLOCK_SIZE = 16
_CONTEXT = 1024  # where a row begins again
_IN_FLIGHT = 3
_WARM_UP_STEPS = 1500


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    found: dict[str, list[_Window]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        kinds = {
            "neither": (),
            "--record": (f"--record={folder}/steps.bin",),
            "--dump-dir": (f"--dump-dir={folder}/dumps",),
        }
        workers = {
            kind: stack.enter_context(_worker(flags, args.rows)) for kind, flags in kinds.items()
        }
        for worker in workers.values():
            worker.run(_WARM_UP_STEPS)
        for turn in range(args.rounds):
            order = list(workers)[:: 1 if turn % 2 else -1]
            for kind in order:
                found.setdefault(kind, []).append(workers[kind].run(args.steps))
        written = Path(folder, "steps.bin").stat().st_size / workers["--record"].steps
        memory = {kind: worker.process.memory_info().rss for kind, worker in workers.items()}
    base = found["neither"]
    for kind in kinds:
        windows = found[kind]
        rate = statistics.median(1 / window.seconds for window in windows)
        cpu = statistics.median(window.cpu_seconds for window in windows)
        print(f"{kind:>10}: {rate:.0f} steps a second, {1e6 * cpu:.0f} us of CPU a step", end="")
        print(f", {memory[kind] / 2**20:.0f} MiB resident")
        if kind != "neither":
            pairs = list(zip(windows, base, strict=True))
            print("            time:", _cost([a.seconds / b.seconds for a, b in pairs]))
            print("            CPU: ", _cost([a.cpu_seconds / b.cpu_seconds for a, b in pairs]))
    print(f"{written:.0f} bytes a step are written")
    return 0


@dataclass(frozen=True, slots=True)
class _Window:
    """Of one step."""

    seconds: float
    cpu_seconds: float


def _cost(ratios: list[float]) -> str:
    low, high = median_interval(ratios)
    cost = 100 * (statistics.median(ratios) - 1)
    return f"{cost:+.2f} % (95 %: {100 * (low - 1):+.2f} to {100 * (high - 1):+.2f} %)"


class _Worker:
    """The scheduler of one: `run` sends steps and waits for all answers."""

    def __init__(self, stub: worker_pb2_grpc.WorkerServiceStub, pid: int, rows: int) -> None:
        self.process = psutil.Process(pid)
        self.steps = 0
        self._rows = np.arange(rows, dtype="<i4")
        request = worker_pb2.ConnectRequest(epoch=1, protocol_version=1)
        self._incarnation = stub.Connect(request).incarnation
        self._sent: queue.SimpleQueue[worker_pb2.Step | None] = queue.SimpleQueue()
        self._call = stub.Execute(iter(self._sent.get, None), metadata=[("nanoserve-epoch", "1")])

    def run(self, steps: int) -> _Window:
        cpu, start = self._cpu_seconds(), time.perf_counter()
        for i in range(steps + _IN_FLIGHT):
            if i < steps:
                self._sent.put(self._step())
            if i >= _IN_FLIGHT and next(self._call).HasField("refusal"):
                raise RuntimeError("a step of the bench was refused")
        seconds, spent = time.perf_counter() - start, self._cpu_seconds() - cpu
        return _Window(seconds / steps, spent / steps)

    def _cpu_seconds(self) -> float:
        """Of all threads, to the nanosecond; the process's own times count hundredths."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in threads) / 1e9

    def stop(self) -> None:
        self._sent.put(None)

    def _step(self) -> worker_pb2.Step:
        """A decode of all rows, which begin again with a prompt of one token at _CONTEXT."""
        position = self.steps % _CONTEXT
        self.steps += 1
        step = worker_pb2.Step(step_id=self.steps, incarnation=self._incarnation)
        rows, per_row = self._rows, _CONTEXT // _BLOCK_SIZE
        if position == 0:
            step.free_rows = rows.tobytes() if self.steps > 1 else b""
            for row in rows.tolist():
                blocks = np.arange(1 + row * per_row, 1 + (row + 1) * per_row, dtype="<i4")
                step.new_rows.add(
                    row=row,
                    request_id=f"request-{row}",
                    token_ids=np.int32(row).tobytes(),
                    prompt_len=1,
                    block_ids=blocks.tobytes(),
                )
        ones = np.ones(len(rows), "<i4")
        slots = (1 + rows.astype("<i8") * per_row) * _BLOCK_SIZE + position
        step.rows, step.query_lens = rows.tobytes(), ones.tobytes()
        step.context_lens, step.slot_mapping = ((position + 1) * ones).tobytes(), slots.tobytes()
        step.samples = ones.astype("u1").tobytes()
        return step


@contextmanager
def _worker(flags: tuple[str, ...], rows: int) -> Iterator[_Worker]:
    blocks = 1 + rows * _CONTEXT // _BLOCK_SIZE
    command = [sys.executable, "-m", "worker", "--simulate", "--listen=127.0.0.1:0"]
    more = ["--metrics-listen=off", f"--num-blocks={blocks}", f"--max-rows={rows}", *flags]
    child = Child("worker", [*command, *more], echo=False)
    try:
        with grpc.insecure_channel(_address(child)) as channel:
            worker = _Worker(worker_pb2_grpc.WorkerServiceStub(channel), child.pid, rows)
            yield worker
            worker.stop()
    finally:
        child.stop(10, threading.Event())


def _address(child: Child) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and child.exit_status is None:
        if found := re.search(r"listening on (\S+)", "\n".join(child.lines)):
            return found[1]
        time.sleep(0.05)
    raise RuntimeError("the worker did not start:\n" + "\n".join(child.lines))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.recording",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=32, help="decodes in each step (default: %(default)s)")
    add("--steps", type=int, default=2000, help="of a window (default: %(default)s)")
    add("--rounds", type=int, default=20, help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
