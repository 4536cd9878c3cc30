"""Worker and scheduler as a pair: started together, watched, stopped in order."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.child import Child
from deploy.local.health_channel import health_channel
from deploy.local.restarts import Restarts
from deploy.local.stop_signals import StopSignals
from nanoserve.environment import known_variables
from scheduler.__main__ import parser as scheduler_parser
from worker.__main__ import parser as worker_parser

_WORKER_PATIENCE = 30.0  # seconds; it has nothing to drain once the scheduler is gone, but to end
_POLL = 0.05  # seconds
# The servers' own defaults.
SCHEDULER_METRICS = "127.0.0.1:9101"
WORKER_METRICS = "127.0.0.1:9102"


class ServerDied(Exception):
    """A server ended by itself; the message has the tail of its output."""


class AddressTaken(Exception):
    """Another server listens at the address asked for."""


class Interrupted(Exception):
    """We were asked to stop."""


@dataclass(frozen=True)
class ServerSettings:
    """What to start. `listen` None: the scheduler gets a unix socket of its own.
    `stop_patience`: seconds that the scheduler may take to drain. `restart_worker`: a worker
    that ends once both were ready is started again."""

    model: Path | None
    listen: str | None
    simulate: bool
    worker_args: tuple[str, ...]
    scheduler_args: tuple[str, ...]
    echo: bool
    stop_patience: float
    restart_worker: bool = False


class Servers:
    """The pair, as a context manager: leaving it stops both, the scheduler first.

    The worker listens on a unix socket in a private folder, so that nothing but the
    scheduler finds it and no port can be taken.
    """

    def __init__(self, settings: ServerSettings, signals: StopSignals) -> None:
        self._settings = settings
        self._signals = signals
        self._folder = Path(tempfile.mkdtemp(prefix="nanoserve-"))
        self._children: list[Child] = []
        self._restarts: Restarts | None = None  # from the moment that both were ready
        self.address = settings.listen or f"unix:{self._folder}/scheduler.sock"

    def __enter__(self) -> Self:
        """Starts both. Raises AddressTaken."""
        settings = self._settings
        # Another server there would be taken for ours, being healthy.
        if settings.listen and _answers(settings.listen):
            self.stop()
            raise AddressTaken(f"another server listens at {settings.listen}; stop it first")
        worker_address = f"unix:{self._folder}/worker.sock"
        model = ["--model", str(settings.model)] if settings.model else []
        simulate = ["--simulate"] if settings.simulate else []
        listen = ["--listen", worker_address]
        try:
            metrics = self._metrics(WORKER_METRICS)
            self._start("worker", *simulate, *model, *listen, *metrics, *settings.worker_args)
            link = ["--worker", worker_address, "--listen", self.address]
            metrics = self._metrics(SCHEDULER_METRICS)
            self._start("scheduler", *model, *link, *metrics, *settings.scheduler_args)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_until_ready(self, timeout: float, progress: Callable[[str], None]) -> None:
        """Returns when the scheduler's health is SERVING; `progress` is told the last
        line of the worker's output meanwhile.

        Raises ServerDied, Interrupted, or TimeoutError after `timeout` seconds.
        """
        give_up = time.monotonic() + timeout
        with health_channel(self.address, self._settings.scheduler_args) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while not self._is_serving(health):
                self.check()
                if self._signals.asked.is_set():
                    raise Interrupted
                if time.monotonic() > give_up:
                    raise TimeoutError(f"the servers were not ready within {timeout:g} s")
                progress(self._children[0].last_line)
                time.sleep(_POLL)
        if self._settings.restart_worker:
            self._restarts = Restarts(time.monotonic())

    def child(self, name: str) -> Child:
        """The "worker" or the "scheduler". Raises StopIteration if it was stopped."""
        return next(child for child in self._children if child.name == name)

    def check(self) -> None:
        """To be called often. Raises ServerDied if a server has ended, unless it is the worker
        and is started again."""
        for child in self._children:
            if (status := child.exit_status) is not None:
                if child.name == "worker" and self._restarts is not None:
                    self._restart_worker(self._restarts, child, status)
                    continue
                ended = _ending(status)
                tail = child.tail()
                output = "" if self._settings.echo else f". The end of its output:\n{tail}"
                raise ServerDied(f"the {child.name} ended ({ended}){output}")

    def stop(self) -> list[str]:
        """Drains and ends the scheduler, then ends the worker. Returns what did not end
        well, one sentence each. Repeated calls do nothing."""
        complaints = []
        patience = {"scheduler": self._settings.stop_patience, "worker": _WORKER_PATIENCE}
        while self._children:
            child = self._children.pop()
            running = child.exit_status is None
            status = child.stop(patience[child.name], self._signals.asked_twice)
            if running and status != 0:
                complaints.append(f"the {child.name} did not stop cleanly (exit status {status})")
        shutil.rmtree(self._folder, ignore_errors=True)
        return complaints

    def _metrics(self, address: str) -> list[str]:
        """Servers for a command of ours need no metrics; those that serve others have them at
        `address`, or, beside servers that have it already, at a free port, which their log
        tells."""
        if not self._settings.listen:
            return ["--metrics-listen", "off"]
        return ["--metrics-listen", "127.0.0.1:0" if _answers(address) else address]

    def _start(self, name: str, *flags: str) -> None:
        command = [sys.executable, "-m", name, *flags]
        echo = self._settings.echo
        self._children.append(Child(name, command, echo, without=_settings_of_the_other(name)))

    def _restart_worker(self, restarts: Restarts, worker: Child, status: int) -> None:
        now = time.monotonic()
        if (delay := restarts.ended(now)) is not None:
            print(
                f"the worker ended ({_ending(status)}); starting it again in {delay:g} s, and "
                "running requests go on then",
                file=sys.stderr,
            )
        if restarts.is_due(now):
            restarts.started(now)
            self._children[self._children.index(worker)] = worker.again()

    @staticmethod
    def _is_serving(health: health_pb2_grpc.HealthStub) -> bool:
        with contextlib.suppress(grpc.RpcError):
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=1)
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False


def _answers(address: str) -> bool:
    """Whether a connection to `address`, host:port, is accepted."""
    host, _, port = address.rpartition(":")
    if host.startswith("unix") or not port.isdecimal():
        return False  # for the scheduler to judge
    with contextlib.suppress(OSError):
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
        return True
    return False


def _settings_of_the_other(name: str) -> frozenset[str]:
    """The variables of the one server that the other does not know, and would refuse."""
    known = {
        "scheduler": known_variables(scheduler_parser()),
        "worker": known_variables(worker_parser()),
    }
    mine = known.pop(name)
    return frozenset().union(*known.values()) - mine


def _ending(status: int) -> str:
    return f"exit status {status}" if status >= 0 else _signal_name(-status)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
