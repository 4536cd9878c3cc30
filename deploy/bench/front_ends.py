"""`python -m deploy.bench.front_ends`: what front ends in processes of their own bring.

The simulated worker makes tokens as fast as `--step-ms` allows for `--streams` requests at a
time, and the load generator reads them over several connections from a process of its own,
against each number of front ends in turn. Told are tokens a second as clients get them, and
the CPU time that a token costs each process, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from deploy.bench.machine import machine
from deploy.bench.ready import READY_SECONDS, free_address
from deploy.local.child import ROOT, environment
from deploy.local.progress import Progress
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked
from deploy.model.fetch import fetch


@dataclass(frozen=True, slots=True)
class _Run:
    tokens_per_second: float
    # Microseconds of CPU time a token.
    engine: float  # the scheduler's own process
    front_ends: float  # all of them together
    worker: float


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    model = fetch(args.model) if args.model else None
    progress = Progress("bench-front-ends")
    runs: dict[int, list[_Run]] = {count: [] for count in args.frontends}
    for number in range(1, args.rounds + 1):
        for count in args.frontends:
            progress.show(f"round {number} of {args.rounds}, --frontends {count}")
            with _servers(model, count, args.step_ms, progress) as servers:
                _load(servers.address, args.streams, args.streams, args)
                runs[count].append(_measured(servers, args))
    progress.end(f"{args.rounds} rounds took {progress.seconds:.0f} s")
    print(f"{args.streams} streams of {args.output} tokens, {'text' if model else 'ids'}; medians")
    print("--frontends  tokens/s  CPU us a token: engine  front ends  worker")
    for count, of in runs.items():
        speed, engine, front, worker = (
            statistics.median(getattr(run, name) for run in of) for name in _Run.__slots__
        )
        print(f"{count:>11}  {speed:>8.0f}  {engine:>22.2f}  {front:>10.2f}  {worker:>6.2f}")
    if args.json:
        values = {count: [asdict(run) for run in of] for count, of in runs.items()}
        report = {"runs": values, "machine": machine()}
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _measured(servers: Servers, args: argparse.Namespace) -> _Run:
    scheduler = psutil.Process(servers.child("scheduler").pid)
    worker = psutil.Process(servers.child("worker").pid)
    groups = ([scheduler], scheduler.children(), [worker])
    before = [_cpu_seconds(group) for group in groups]
    requests = args.streams * args.requests
    speed = _load(servers.address, args.streams, requests, args)
    tokens = requests * args.output
    spent = [_cpu_seconds(group) - was for group, was in zip(groups, before, strict=True)]
    return _Run(speed, *(1e6 * seconds / tokens for seconds in spent))


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)


def _load(address: str, streams: int, requests: int, args: argparse.Namespace) -> float:
    """Tokens a second over the whole load. Raises RuntimeError if a request failed."""
    flags = {
        "concurrency": streams,
        "requests": requests,
        "prompt-len": args.prompt,
        "output-len": args.output,
        "processes": args.clients,
        "sample-interval": 0,
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "deploy.loadtest", "run", address, "--json"),
            *(part for name, value in flags.items() for part in (f"--{name}", str(value))),
        ],
        cwd=ROOT,
        env=environment(),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # its progress
    )
    if not done.stdout:
        raise RuntimeError(f"the load generator ended with status {done.returncode}")
    # That it sent late on a busy machine, which ends it with a status of its own, is no matter.
    report = json.loads(done.stdout)
    if report["requests"]["ok"] != requests:
        raise RuntimeError(f"not all requests ended well: {report['requests']}")
    return float(report["per_second"]["output_tokens"])


@contextmanager
def _servers(
    model: Path | None, front_ends: int, step_ms: float, progress: Progress
) -> Iterator[Servers]:
    flags = ("--no-tokenizer",) if model is None else ()
    quiet = ("--no-prefix-cache", "--log-level", "warning", "--metrics-listen", "off")
    settings = ServerSettings(
        model=model,
        listen=free_address(),
        simulate=True,
        worker_args=("--step-ms", str(step_ms)),
        scheduler_args=(*flags, *quiet, "--frontends", str(front_ends)),
        echo=False,
        stop_patience=40.0,
    )
    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(READY_SECONDS, progress.show)
        scheduler = psutil.Process(servers.child("scheduler").pid)
        while len(scheduler.children()) < front_ends:
            time.sleep(0.05)
        yield servers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.front_ends",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", help="serve text, with its tokenizer; as for make (default: ids alone)")
    add("--frontends", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    add("--streams", type=int, default=256, help="requests at a time (default: %(default)s)")
    add("--requests", type=int, default=4, help="of each stream (default: %(default)s)")
    add("--prompt", type=int, default=16, help="prompt ids (default: %(default)s)")
    add("--output", type=int, default=256, help="output tokens (default: %(default)s)")
    add("--step-ms", type=float, default=1.0, help="of the worker's device (default: 1)")
    add("--clients", type=int, default=1, help="processes of the load (default: %(default)s)")
    add("--rounds", type=int, default=5, help="default: %(default)s")
    add("--json", type=Path, metavar="FILE", help="write every run there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
