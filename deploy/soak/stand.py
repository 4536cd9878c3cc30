"""The servers under test: a scheduler, a worker that is always started again, a relay between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.child import Child
from deploy.soak.faults import Fault
from deploy.soak.relay import Relay

_RESTART_SECONDS = 0.2
_LOOK_SECONDS = 0.02
_READY_SECONDS = 180.0
_STOP_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Memory:
    """One look at a process. `age` and `at` in seconds, `rss` in bytes."""

    at: float
    name: str
    pid: int
    age: float
    rss: int
    files: int


class Stand:
    """An async context manager: started and ready inside, everything gone outside.

    `strange` has what should not have happened to the processes, one sentence each."""

    def __init__(self, worker_flags: list[str], scheduler_flags: list[str]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nanoserve-soak-"))
        self.address = f"unix:{self._folder}/public.sock"
        target, link = f"{self._folder}/worker.sock", f"{self._folder}/link.sock"
        common = ["--metrics-listen", "off"]
        self._worker_command = _command("worker", "--listen", f"unix:{target}", *common)
        self._worker_command += worker_flags
        self._scheduler_command = _command(
            "scheduler", "--listen", self.address, "--worker", f"unix:{link}", "--audit", *common
        )
        self._scheduler_command += scheduler_flags
        self._relay = Relay(link, target)
        self.strange: list[str] = []
        self.worker_starts = 0
        self.over = False  # the scheduler has ended: there is nothing left to soak
        self.listening_at: float | None = None  # time.monotonic() of the running worker; or None
        self.began = time.monotonic()
        self._stopping = False

    async def __aenter__(self) -> Self:
        await self._relay.__aenter__()
        self._start_worker()
        self.scheduler = Child("scheduler", self._scheduler_command, echo=False)
        self._supervisor = asyncio.create_task(self._supervise())
        try:
            await self.wait_until_ready()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping = True
        self._supervisor.cancel()
        families = [psutil.Process(c.pid) for c in (self.scheduler, self.worker) if _lives(c)]
        families += [child for one in families for child in one.children(recursive=True)]
        for child in (self.scheduler, self.worker):
            running = child.exit_status is None
            status = await asyncio.to_thread(child.stop, _STOP_SECONDS, threading.Event())
            if running and status != 0:
                self.strange.append(f"the {child.name} stopped with {status}:\n{child.tail()}")
        await self._relay.__aexit__(None, None, None)
        self.strange += [f"process {one.pid} is left behind" for one in families if _alive(one)]
        left = [path.name for path in self._folder.iterdir() if path.name != "link.sock"]
        self.strange += [f"file {name} is left behind" for name in left]
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()

    async def wait_until_ready(self) -> None:
        """Raises TimeoutError or RuntimeError with the servers' own words."""
        options = [("grpc.max_reconnect_backoff_ms", 200)]
        async with asyncio.timeout(_READY_SECONDS):
            async with grpc.aio.insecure_channel(self.address, options=options) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                while True:
                    if self.scheduler.exit_status is not None:
                        raise RuntimeError(f"the scheduler ended:\n{self.scheduler.tail()}")
                    try:
                        request = health_pb2.HealthCheckRequest()
                        answer = await health.Check(request, timeout=1)
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                    except grpc.aio.AioRpcError:
                        pass
                    await asyncio.sleep(0.1)

    async def inflict(self, fault: Fault) -> None:
        """Returns once the fault is over; what it sets off may go on."""
        match fault.kind:
            case "kill":
                self._signal(signal.SIGKILL)
            case "replace":
                self._signal(signal.SIGTERM)
            case "pause" | "hang":
                self._signal(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                self._signal(signal.SIGCONT)
            case "cut":
                self._relay.cut()
            case "partition":
                await self._relay.hold(fault.seconds)

    def _signal(self, number: signal.Signals) -> None:
        """To the worker, which may have ended a moment ago."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.worker.pid, number)

    def memory(self) -> list[Memory]:
        """Of what runs at this moment."""
        now, taken = time.monotonic(), []
        for child in (self.scheduler, self.worker):
            try:
                process = psutil.Process(child.pid)
                with process.oneshot():
                    age = time.time() - process.create_time()
                    rss, files = process.memory_info().rss, process.num_fds()
            except psutil.Error:
                continue
            taken.append(Memory(now - self.began, child.name, child.pid, age, rss, files))
        return taken

    def _start_worker(self) -> None:
        self.worker_starts += 1
        self.listening_at = None
        self.worker = Child("worker", self._worker_command, echo=False)

    async def _supervise(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if (status := self.scheduler.exit_status) is not None:
                self.strange.append(f"the scheduler ended with {status}:\n{self.scheduler.tail()}")
                self.over = True
                return
            if self.worker.exit_status is not None:
                self.listening_at = None
                await asyncio.sleep(_RESTART_SECONDS)
                self._start_worker()
            elif self.listening_at is None and "listening on" in self.worker.last_line:
                self.listening_at = time.monotonic()


def _command(name: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", name, *flags]


def _lives(child: Child) -> bool:
    return child.exit_status is None


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
