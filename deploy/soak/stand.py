"""The servers under test: a scheduler, a worker, a relay between; each always started again."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.soak.absences import Absences
from deploy.soak.faults import Fault
from deploy.soak.relay import Relay
from deploy.soak.server import Server

# A drain no longer than other faults.
_COMMON = ("--metrics-listen", "off", "--drain-timeout", "2")
_LOOK_SECONDS = 0.05
_READY_SECONDS = 180.0
_REFUSED_SECONDS = 30.0
# What the log of a scheduler says that a newer one has taken the worker from.
_REFUSED = "a newer scheduler has this worker"


@dataclass(frozen=True, slots=True)
class Memory:
    """One look at a process. `rss` in bytes, times in seconds: `at` since the stand began,
    `born` since the epoch, which tells processes of one pid apart."""

    at: float
    name: str
    pid: int
    born: float
    age: float
    rss: int
    files: int

    @property
    def process(self) -> tuple[int, float]:
        return self.pid, self.born


class Stand:
    """An async context manager: started and ready inside, everything gone outside.

    `address` is the scheduler's: one of `addresses`, since a scheduler that stands still keeps
    its own while another one takes over. `strange` has what should not have happened to the
    processes, one sentence each.
    """

    def __init__(
        self, worker_flags: list[str], scheduler_flags: list[str], *, may_crash: bool = False
    ) -> None:
        """`may_crash`: some requests crash the worker."""
        self._folder = Path(tempfile.mkdtemp(prefix="nanoserve-soak-"))
        self.addresses = [f"unix:{self._folder}/public-{i}.sock" for i in range(2)]
        self.address = self.addresses[0]
        self._link, self._target = f"{self._folder}/link.sock", f"{self._folder}/worker.sock"
        self._scratch = self._folder / "tmp"
        self._scratch.mkdir()
        self._worker_flags, self._scheduler_flags = worker_flags, scheduler_flags
        self._may_crash = may_crash
        self._relay = Relay(self._link, self._target)
        self.absences = Absences()
        self.strange: list[str] = []
        self.began = time.monotonic()
        self._running: list[Server] = []
        self._ended_starts = 0  # of schedulers that were taken over from
        self._returns: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._relay.__aenter__()
        flags = ["--listen", f"unix:{self._target}", *_COMMON, *self._worker_flags]
        self.worker = Server("worker", flags, self._scratch, may_crash=self._may_crash)
        self._running.append(self.worker)
        self.scheduler = self._start_scheduler(self.address)
        try:
            await self._wait_until_ready(self.scheduler, self.address)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        for server in self._running:
            server.supervise()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._returns:
            task.cancel()
        for server in reversed(self._running):  # the worker last
            await self._stop(server)
        await self._relay.__aexit__(None, None, None)
        ours = {Path(self._link), self._scratch}
        left = {*self._folder.iterdir(), *self._scratch.iterdir()} - ours
        self.strange += [f"file {path.name} is left behind" for path in sorted(left)]
        shutil.rmtree(self._folder)

    def _start_scheduler(self, address: str) -> Server:
        flags = ["--listen", address, "--worker", f"unix:{self._link}", "--audit", *_COMMON]
        server = Server("scheduler", [*flags, *self._scheduler_flags], self._scratch)
        self._running.append(server)
        return server

    async def _stop(self, server: Server) -> None:
        await server.stop()
        self._running.remove(server)
        self.strange += server.strange

    @property
    def starts(self) -> dict[str, int]:
        """How often each server was started."""
        ended = self._ended_starts
        return {"worker": self.worker.starts, "scheduler": self.scheduler.starts + ended}

    @property
    def all_strange(self) -> list[str]:
        """`strange`, and what is so of those that are not stopped yet."""
        return self.strange + [one for server in self._running for one in server.strange]

    @property
    def is_over(self) -> bool:
        """Whether a server ended without a reason: there is nothing left to soak."""
        return any(server.is_lost for server in self._running)

    async def while_up(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Waits for them; if a server ends without a reason, cancels them. Raises what they do."""
        rest = set(tasks)
        while rest and not self.is_over:
            done, rest = await asyncio.wait(rest, timeout=1.0)
            for task in done:
                task.result()
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _wait_until_ready(self, server: Server, address: str) -> None:
        """Raises TimeoutError, or RuntimeError with the server's own words."""
        options = [("grpc.max_reconnect_backoff_ms", 200)]
        async with asyncio.timeout(_READY_SECONDS):
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                while not await _serves(health):
                    for one in (server, self.worker):
                        if one.is_gone:
                            raise RuntimeError(f"the {one.name} ended:\n{one.child.tail()}")
                    await asyncio.sleep(_LOOK_SECONDS)

    async def inflict(self, fault: Fault) -> None:
        """Returns once the fault is over; what it sets off may go on."""
        match fault.kind:
            case "kill":
                await self.worker.starts_again()
                self.worker.signal(signal.SIGKILL)
            case "replace":
                self.worker.signal(signal.SIGTERM)
            case "pause" | "hang":
                self.worker.signal(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                self.worker.signal(signal.SIGCONT)
            case "cut":
                self._relay.cut()
            case "partition":
                await self._relay.hold(fault.seconds)
            case "scheduler-kill":
                await self._end_scheduler(signal.SIGKILL)
            case "scheduler-stop":
                await self._end_scheduler(signal.SIGTERM)
            case "scheduler-return":
                await self._take_over()

    async def _end_scheduler(self, number: signal.Signals) -> None:
        """Its address is absent until the next one there is ready, before which no other
        scheduler ends."""
        await asyncio.gather(*self._returns)
        self.absences.began(self.address, time.monotonic())
        self.scheduler.signal(number)
        task = asyncio.create_task(self._await_return(self.scheduler.starts))
        self._returns.add(task)
        task.add_done_callback(self._returned)

    async def _await_return(self, starts: int) -> None:
        server, address = self.scheduler, self.address
        while server.starts <= starts:
            await asyncio.sleep(_LOOK_SECONDS)
        await self._wait_until_ready(server, address)
        self.absences.ended(address, time.monotonic())

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._returns.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.strange.append(f"the next scheduler was not ready: {error!r}")

    async def _take_over(self) -> None:
        """The scheduler stands still until another one, elsewhere, has the worker; then it must
        be refused."""
        await asyncio.gather(*self._returns)
        old, old_address = self.scheduler, self.address
        self.absences.began(old_address, time.monotonic())
        old.signal(signal.SIGSTOP)
        address = next(one for one in self.addresses if one != old_address)
        new = self._start_scheduler(address)
        try:
            await self._wait_until_ready(new, address)
        finally:
            new.supervise()
            self.scheduler, self.address = new, address
            old.signal(signal.SIGCONT)
        for _ in range(round(_REFUSED_SECONDS / _LOOK_SECONDS)):
            if old.says(_REFUSED):
                break
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            self.strange.append("the worker did not refuse a scheduler that came back")
        await self._stop(old)
        self._ended_starts += old.starts
        self.absences.ended(old_address, time.monotonic())

    def memory(self) -> list[Memory]:
        """Of what runs at this moment."""
        now, taken = time.monotonic(), []
        for server in (self.scheduler, self.worker):
            try:
                process = psutil.Process(server.child.pid)
                with process.oneshot():
                    born, pid = process.create_time(), process.pid
                    rss, files = process.memory_info().rss, process.num_fds()
            except psutil.Error:
                continue
            at, age = now - self.began, time.time() - born
            taken.append(Memory(at, server.name, pid, born, age, rss, files))
        return taken


async def _serves(health: health_pb2_grpc.HealthStub) -> bool:
    try:
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
