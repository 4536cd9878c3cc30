"""`python -m deploy.bench.profile`: where a decode step's time goes.

Scheduler and worker run as they are, but keep the times of their steps; clients send a batch at
once. For each batch: a table (the device busy and idle, a step's way through scheduler, wire and
worker, CPU time by thread, and what torch's profiler saw of the kernels, in steps of their own),
and a picture of some steps side by side. Then the way of a prompt alone to its first token. On a
CPU what is called device is the forward.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from deploy.bench.batch import Batch
from deploy.bench.bursts import Bursts, BurstTimes
from deploy.bench.machine import machine
from deploy.bench.profile.account import Account
from deploy.bench.profile.first_token import FirstToken, requests_of_prompts
from deploy.bench.profile.kernel_times import Wanted
from deploy.bench.profile.picture import plot_timeline
from deploy.bench.profile.steps import steady_decodes, steps_of_prompts
from deploy.bench.profile.thread_times import spent_by_name, thread_times
from deploy.bench.profile.trace_file import Trace
from deploy.bench.ready import free_address
from deploy.bench.worker_process import WorkerProcess
from deploy.loadtest.fleet import LoadError
from deploy.local.child import ROOT, environment
from deploy.local.progress import Progress
from deploy.model.cache import FetchError
from deploy.model.fetch import fetch
from deploy.model.random_llama import SHAPES

_KERNEL_STEPS = 20
_PROMPTS = 40
_WARM_UP_PROMPTS = 10  # of those
_PATIENCE = 60.0  # seconds, for a kernel profile to end


@dataclass(frozen=True, slots=True)
class _Load:
    """One batch as it was sent; moments in ns, CPU seconds by process and thread."""

    streams: int
    since: int
    until: int
    before: Mapping[str, Mapping[int, float]]
    after: Mapping[str, Mapping[int, float]]


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    numbers = [(name, getattr(args, name)) for name in ("prompt", "output", "steps", "clients")]
    for name, value in (*numbers, *(("streams", value) for value in args.streams)):
        if value < 1:
            parser.error(f"--{name} is {value}, must be at least 1")
    progress = Progress("bench-profile")
    with tempfile.TemporaryDirectory(prefix="nanoserve-") as temporary:
        folder = Path(temporary)
        progress.show("the model")
        try:
            model = _random(folder / "model", args.random) if args.random else fetch(args.model)
            loads, prompts = _send(model, folder, args, progress)
            scheduler, worker = Trace.load(folder / "scheduler"), Trace.load(folder / "worker")
            accounts = _accounts(loads, scheduler, worker)
            hub = Trace.load(folder / "scheduler.requests") if args.frontends else None
            first_token = _first_token(args.prompt, prompts, scheduler, worker, hub)
        except (FetchError, LoadError, RuntimeError, ValueError) as error:
            print(f"bench-profile: {error}", file=sys.stderr)
            return 1
    progress.end(f"took {progress.seconds:.0f} s")
    args.out.mkdir(parents=True, exist_ok=True)
    about = machine()
    subtitle = f"{args.random or model.name}, prompt {args.prompt}, --frontends {args.frontends}; "
    where = (about["processor"], f"commit {about['commit'] or 'unknown'}", about["date"])
    subtitle += ", ".join(map(str, where))
    for account in accounts:
        print(account.describe())
        picture = args.out / f"batch-{account.streams}.png"
        plot_timeline(account, args.steps, subtitle, picture)
    print(first_token.describe())
    report = {
        "accounts": [account.to_json() for account in accounts],
        "first_token": first_token.to_json(),
        "machine": about,
    }
    (args.out / "profile.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"pictures and figures: {args.out}")
    return 0


def _random(folder: Path, shape: str) -> Path:
    """Random weights, on the card if there is one. Raises RuntimeError."""
    flags = ("--shape", shape, "--out", str(folder), "--device", "auto", "--words")
    command = [sys.executable, "-m", "deploy.model.random_llama", *flags]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"no random weights:\n{done.stderr[-2000:]}")
    return folder


def _send(
    model: Path, folder: Path, args: argparse.Namespace, progress: Progress
) -> tuple[list[_Load], list[BurstTimes]]:
    """The batches, and prompts that came alone."""
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    traced = "deploy.bench.profile.traced_"
    own = ("--model", str(model))
    loads = []
    with ExitStack() as stack:
        progress.show("the worker's start")
        worker = stack.enter_context(
            WorkerProcess(
                (*own, *shlex.split(args.worker_args)), (traced + "worker", str(folder / "worker"))
            )
        )
        address = stack.enter_context(
            worker.scheduler(
                (
                    *(*own, "--log-level", "warning", "--no-prefix-cache"),
                    *("--frontends", str(args.frontends)),
                    *shlex.split(args.scheduler_args),
                ),
                (traced + "scheduler", str(folder / "scheduler")),
                free_address() if args.frontends else None,
            )
        )
        for streams in args.streams:
            progress.show(f"batch {streams}")
            batch = Batch(streams, args.prompt, vocab_size, streams, args.clients)
            with batch.bursts(address, args.output) as bursts:
                bursts.send()  # a warm-up
                before, since = _cpu_times(worker), time.monotonic_ns()
                bursts.send()
                after, until = _cpu_times(worker), time.monotonic_ns()
                loads.append(_Load(streams, since, until, before, after))
                if not args.no_kernels:
                    _profile_kernels(bursts, folder / "worker.kernels", streams)
        progress.show("first tokens")
        user = Batch(1, args.prompt, vocab_size, 0, connections=1)
        with user.bursts(address, 1) as bursts:
            bursts.send()  # a warm-up
            prompts = bursts.send_in_turn(_PROMPTS)[_WARM_UP_PROMPTS:]
    return loads, prompts


def _profile_kernels(bursts: Bursts, wanted: Path, streams: int) -> None:
    """Sends until the worker has looked at enough steps. Raises RuntimeError if it never does."""
    written = wanted.with_suffix(".part")
    written.write_text(str(Wanted(_KERNEL_STEPS, streams)))
    written.rename(wanted)  # so that the worker never sees half of it
    give_up = time.monotonic() + _PATIENCE
    while wanted.exists():
        if time.monotonic() > give_up:
            raise RuntimeError(f"no kernel profile within {_PATIENCE:g} s: try --no-kernels")
        bursts.send()


def _cpu_times(worker: WorkerProcess) -> dict[str, dict[int, float]]:
    front_ends = {}
    for child in psutil.Process(worker.scheduler_pid).children():
        front_ends |= thread_times(child.pid)
    scheduler, own = thread_times(worker.scheduler_pid), thread_times(worker.child.pid)
    return {"worker": own, "scheduler": scheduler, "front ends": front_ends}


def _first_token(
    prompt: int, prompts: list[BurstTimes], scheduler: Trace, worker: Trace, hub: Trace | None
) -> FirstToken:
    """Raises ValueError if a prompt took more steps than one."""
    due = [times.due for times in prompts]
    sent = [times.due + times.sent[0] for times in prompts]
    seen = [times.due + times.first_tokens[0] for times in prompts]
    spans = list(zip(due, seen, strict=True))
    steps = steps_of_prompts(scheduler, worker, spans)
    requests = requests_of_prompts(hub, spans) if hub else None
    return FirstToken(prompt, steps, due, sent, seen, requests)


def _accounts(loads: list[_Load], scheduler: Trace, worker: Trace) -> list[Account]:
    """Raises ValueError if a load had too few steps."""
    names = {"worker": worker.threads, "scheduler": scheduler.threads, "front ends": {}}
    kernels = [*worker.kernels, *[()] * len(loads)]
    accounts = []
    for number, load in enumerate(loads):
        steps = steady_decodes(scheduler, worker, load.streams, load.since, load.until)
        taken = scheduler.columns["taken"]
        count = int(((taken > load.since) & (taken < load.until)).sum())
        threads = {
            process: {
                name: 1e3 * seconds / count
                for name, seconds in spent_by_name(
                    load.before[process], times, names[process]
                ).items()
            }
            for process, times in load.after.items()
        }
        accounts.append(Account(load.streams, steps, threads, kernels[number]))
    return accounts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.profile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="default", help="as for make (default: %(default)s)")
    add("--random", choices=sorted(SHAPES), help="random weights of this shape instead")
    add("--streams", type=int, nargs="+", default=[1, 32], help="batches (default: 1 32)")
    add("--prompt", type=int, default=512, help="prompt ids (default: %(default)s)")
    add("--output", type=int, default=128, help="output tokens (default: %(default)s)")
    add("--steps", type=int, default=6, help="of a picture (default: %(default)s)")
    add("--clients", type=int, default=4, help="client processes (default: %(default)s)")
    add("--frontends", type=int, default=4, help="of the scheduler (default: %(default)s)")
    add("--no-kernels", action="store_true", help="without torch's profiler")
    add("--worker-args", default="", metavar="FLAGS", help="more flags for the worker")
    add("--scheduler-args", default="", metavar="FLAGS", help="more flags for the scheduler")
    text = "folder of pictures and profile.json (default: %(default)s)"
    add("--out", type=Path, default=Path("bench-profile"), metavar="DIR", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
