"""`python -m deploy.bench.profile.traced_scheduler FILE SCHEDULER_FLAGS`: the scheduler as it is,
with the times of its steps written to FILE when it ends, and of its requests, if it has front ends
apart, to FILE.requests.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from deploy.bench.profile.trace_file import TraceFile
from deploy.bench.profile.traced_hub import TracedHub
from scheduler.__main__ import parser
from scheduler.core.worker_link import Inbox, LinkEvent, StepAnswer, StepPlan, WorkerLink
from scheduler.link.link import GrpcWorkerLink
from scheduler.log_format import start_logging
from scheduler.run import run
from scheduler.run_apart import run_apart

# Moments in ns: that the engine began to hand the step to the link and had done so, and that its
# answer was read; durations as the worker told them, idle -1 where it did not.
COLUMNS = (
    *("step_id", "sequences", "tokens", "sending", "sent", "taken"),
    *("queue", "input", "device", "sample", "total", "idle"),
)


class TracedLink:
    """Implements WorkerLink over another, and Inbox towards it."""

    def __init__(self, link: WorkerLink, path: Path) -> None:
        self._link = link
        self._path = path
        self._inbox: Inbox | None = None
        self._trace = TraceFile(COLUMNS)
        self._sent: dict[int, tuple[int, ...]] = {}  # by step id, until it is answered

    def start(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._link.start(self)

    def send(self, plan: StepPlan) -> None:
        sending = time.monotonic_ns()
        counts = plan.step_id, len(plan.rows), plan.slot_mapping.size
        # Before it is sent: its answer may come first.
        self._sent[plan.step_id] = (*counts, sending, sending)
        self._link.send(plan)
        if plan.step_id in self._sent:
            self._sent[plan.step_id] = (*counts, sending, time.monotonic_ns())

    def post(self, event: LinkEvent) -> None:
        if isinstance(event, StepAnswer) and event.step_id in self._sent:
            times = event.times_ns
            self._trace.add(
                *self._sent.pop(event.step_id),
                time.monotonic_ns(),
                *(times.queue, times.input, times.device, times.sample, times.total),
                -1 if times.idle is None else times.idle,
            )
        if self._inbox is not None:
            self._inbox.post(event)

    def give_up(self) -> None:
        self._link.give_up()

    def close(self) -> None:
        self._link.close()
        self._trace.save(self._path)


def main(arguments: list[str]) -> int:
    path, flags = Path(arguments[0]), parser().parse_args(arguments[1:])
    start_logging(flags.log_level, flags.log_format, None)

    def make_link(flags: argparse.Namespace, fingerprint: str | None) -> TracedLink:
        return TracedLink(GrpcWorkerLink(flags.worker, fingerprint=fingerprint), path)

    if flags.frontends:
        hub = TracedHub(Path(f"{path}.requests"))
        run_apart(flags, arguments[1:], make_link, hub)
        hub.save()
    else:
        run(flags, make_link)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
