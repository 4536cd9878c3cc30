"""`python -m deploy.bench.batching.recorded_scheduler FILE SCHEDULER_FLAGS`: the scheduler as it
is, with every step of its life written to FILE when it ends.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from deploy.bench.batching.recording import RecordedStep, Recording
from scheduler.__main__ import parser
from scheduler.core.worker_link import (
    Connected,
    Inbox,
    LinkEvent,
    StepAnswer,
    StepPlan,
    WorkerInfo,
    WorkerLink,
)
from scheduler.link.link import GrpcWorkerLink
from scheduler.run import run


class RecordingLink:
    """Implements WorkerLink over another, and Inbox towards it. A step is recorded by two
    list appends; what is not answered when the link closes is left out."""

    def __init__(self, link: WorkerLink, path: Path) -> None:
        self._link = link
        self._path = path
        self._inbox: Inbox | None = None
        self._info: WorkerInfo | None = None
        self._sent: list[tuple[StepPlan, float]] = []
        self._answered: list[float] = []

    def start(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._link.start(self)

    def send(self, plan: StepPlan) -> None:
        self._sent.append((plan, time.monotonic()))
        self._link.send(plan)

    def post(self, event: LinkEvent) -> None:
        if isinstance(event, StepAnswer):
            self._answered.append(time.monotonic())
        elif isinstance(event, Connected):
            if self._info is not None and not event.resumed:
                raise RuntimeError("the worker was lost, and the recording with it")
            self._info = event.info
        if self._inbox is not None:
            self._inbox.post(event)

    def close(self) -> None:
        self._link.close()
        if self._info is None:
            return
        steps = [
            RecordedStep.of(plan, sent, answered)
            for (plan, sent), answered in zip(self._sent, self._answered, strict=False)
        ]
        info, self._info = self._info, None
        Recording(info.num_blocks, info.block_size, info.max_rows, steps).save(self._path)


def main(arguments: list[str]) -> int:
    path, flags = Path(arguments[0]), parser().parse_args(arguments[1:])
    logging.basicConfig(level="INFO", stream=sys.stderr)

    def make_link(flags: argparse.Namespace, fingerprint: str | None) -> RecordingLink:
        return RecordingLink(GrpcWorkerLink(flags.worker, fingerprint=fingerprint), path)

    run(flags, make_link)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
