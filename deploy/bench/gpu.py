"""`python -m deploy.bench.gpu`: decode steps through worker, scheduler and client processes.

All requests of a batch are sent at once; a step is (T(all tokens) - T(one token)) over the tokens
between, medians over repetitions. A client or front end of one process handles some 20,000 messages
a second: `--clients` and `--frontends` give them more.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from pathlib import Path

from deploy.bench.batch import Batch
from deploy.bench.ready import READY_SECONDS
from deploy.local.progress import Progress
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    vocab_size = json.loads((args.model / "config.json").read_text())["vocab_size"]
    settings = ServerSettings(
        model=args.model,
        listen=args.listen,
        simulate=False,
        worker_args=tuple(shlex.split(args.worker_args)),
        scheduler_args=("--frontends", str(args.frontends), *shlex.split(args.scheduler_args)),
        echo=False,
        stop_patience=40.0,
    )
    progress = Progress("bench-gpu")
    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(READY_SECONDS, progress.show)
        progress.end(f"ready after {progress.seconds:.1f} s")
        print("batch   step ms (repetitions)          out tok/s   first token ms")
        for streams in args.streams:
            batch = Batch(streams, args.prompt, vocab_size, streams, min(args.clients, streams))
            batch.run(servers.address, 8)
            steps, firsts = [], []
            for _ in range(args.repetitions):
                one = batch.run(servers.address, 1)
                whole = batch.run(servers.address, args.output)
                steps.append(1e3 * (whole.end - one.end) / (args.output - 1))
                firsts.append(1e3 * statistics.median(one.first_tokens))
            step = statistics.median(steps)
            spread = f"({min(steps):.3f} to {max(steps):.3f})"
            print(
                f"{streams:5} {step:9.3f} {spread:20} {1e3 * streams / step:12.0f} "
                f"{statistics.median(firsts):12.1f}",
                flush=True,
            )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="model folder")
    add("--streams", type=int, nargs="+", default=[1, 32, 256], help="default: 1 32 256")
    add("--prompt", type=int, default=512, help="prompt ids (default: %(default)s)")
    add("--output", type=int, default=256, help="output tokens (default: %(default)s)")
    add("--repetitions", type=int, default=5, help="of each batch (default: %(default)s)")
    add("--clients", type=int, default=1, help="client processes (default: %(default)s)")
    add("--frontends", type=int, default=0, help="of the scheduler (default: %(default)s)")
    add("--listen", metavar="HOST:PORT", help="of the scheduler (default: a unix socket)")
    add("--worker-args", default="", metavar="FLAGS", help="more flags for the worker")
    add("--scheduler-args", default="", metavar="FLAGS", help="more flags for the scheduler")
    return parser


if __name__ == "__main__":
    sys.exit(main())
