"""`python -m deploy.bench.one_process WORKER_FLAGS -- SCHEDULER_FLAGS`: scheduler and worker
in one process, for comparison with the two that are shipped.
"""

from __future__ import annotations

import logging
import sys

from deploy.bench.in_process_link import InProcessLink
from scheduler.__main__ import parser
from scheduler.run import run
from worker.__main__ import parse
from worker.start import make_executor


def main(arguments: list[str]) -> int:
    middle = arguments.index("--")
    worker_flags = parse(arguments[:middle])
    scheduler_flags = parser().parse_args(arguments[middle + 1 :])
    logging.basicConfig(level="INFO", stream=sys.stderr)
    run(scheduler_flags, lambda *_: InProcessLink(lambda: make_executor(worker_flags)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
