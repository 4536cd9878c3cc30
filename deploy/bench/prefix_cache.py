"""`python -m deploy.bench.prefix_cache`: what the prefix cache buys, and what it costs.

First tokens: on the model, prompts of a shared beginning and a few ids of their own, sent one
after the other. The first of each round computes the beginning, those behind it find it. Times
are the client's, from sending to the first token.

Costs: a scheduler with the cache and one without, each with a simulated worker, take turns
under the same load, once with prompts that share nothing and once with ones that share all but
a few ids. Told is CPU time of the scheduler's process, which a busy machine disturbs less than
time: for each step, and for each request.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from deploy.bench.interval import median_interval
from deploy.bench.machine import machine
from deploy.bench.ready import READY_SECONDS
from deploy.loadtest.arrivals import Closed
from deploy.loadtest.lengths import Fixed
from deploy.loadtest.plan import Content, LoadPlan, Nanoserve
from deploy.loadtest.run import run_load
from deploy.local.progress import Progress
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked
from deploy.model.fetch import fetch
from nanoserve import Client

OWN_TOKENS = 16
OUTPUT_TOKENS = 64
WITHOUT = ("--no-prefix-cache",)


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    progress = Progress("bench-prefix-cache")
    report: dict[str, object] = {"machine": machine()}
    if "first-token" in args.only:
        firsts = _first_tokens(args, progress)
        report["first_token_seconds"] = firsts
        for name, seconds in firsts.items():
            print(f"{name:<28}{_spread([1000 * s for s in seconds])} ms to the first token")
    if "cost" in args.only:
        windows = _costs(args, progress)
        report["windows"] = [asdict(window) for window in windows]
        for shared in (False, True):
            print(_cost_lines([w for w in windows if w.shared is shared]))
    progress.end(f"it took {progress.seconds:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _first_tokens(args: argparse.Namespace, progress: Progress) -> dict[str, list[float]]:
    """Seconds, by what was found."""
    folder = fetch(args.model)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    worker = ("--dtype", "bfloat16", "--threads", str(args.threads))
    computed, found = f"{args.prefix} tokens to compute", f"{args.prefix} tokens found"
    seconds: dict[str, list[float]] = {computed: [], found: []}
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(count)]

    with _servers(progress, model=folder, worker=worker) as servers, Client(servers.address) as c:
        _time_to_first(c, ids(args.prefix))  # warms up
        for number in range(1, args.rounds + 1):
            progress.show(f"round {number} of {args.rounds}")
            beginning = ids(args.prefix)
            for name in (computed, *[found] * 3):
                taken, cached = _time_to_first(c, beginning + ids(OWN_TOKENS))
                if cached != (args.prefix if name == found else 0):
                    raise RuntimeError(f"{cached} tokens were cached: {name}")
                seconds[name].append(taken)
    return seconds


def _time_to_first(client: Client, prompt: list[int]) -> tuple[float, int]:
    start = time.perf_counter()
    answer = client.generate(token_ids=prompt, max_tokens=1, temperature=0).collect()
    seconds = time.perf_counter() - start
    if answer.usage is None:
        raise RuntimeError("a request ended without a usage")
    return seconds, answer.usage.cached_tokens


@dataclass(frozen=True, slots=True)
class _Window:
    """Of one load under one scheduler. Microseconds of the scheduler's CPU time."""

    cache: bool
    shared: bool
    cpu_per_step: float
    cpu_per_request: float
    found: float  # share of the prompts' tokens


def _costs(args: argparse.Namespace, progress: Progress) -> list[_Window]:
    worker = ("--vocab-size", "32000", "--step-ms", str(args.step_ms), "--max-model-len", "2048")
    windows = []
    with ExitStack() as stack:
        servers = {
            cache: stack.enter_context(
                _servers(progress, worker=worker, scheduler=() if cache else WITHOUT)
            )
            for cache in (False, True)
        }
        for cache in servers:
            _window(servers[cache], cache, True, args.rounds, args)  # warms up
        for number in range(args.rounds):
            progress.show(f"round {number + 1} of {args.rounds}")
            for shared in (False, True):
                for cache in (False, True) if number % 2 else (True, False):
                    windows.append(_window(servers[cache], cache, shared, number, args))
    return windows


def _window(
    servers: Servers, cache: bool, shared: bool, seed: int, args: argparse.Namespace
) -> _Window:
    prefix = args.prefix if shared else 0
    plan = LoadPlan(
        Nanoserve(servers.address),
        Closed(args.streams),
        Content(Fixed(args.prefix + OWN_TOKENS - prefix), Fixed(OUTPUT_TOKENS), prefix=prefix),
        requests=args.requests,
        seed=2 * seed + shared,
        processes=1,
        sample_interval=0,  # status is not to be asked beside what is measured
    )
    process = psutil.Process(servers.child("scheduler").pid)
    with Client(servers.address) as client:
        before, cpu = client.status(), process.cpu_times()
        run = run_load(plan)
        after, cpu_after = client.status(), process.cpu_times()
    if any(timeline.status != "OK" for timeline in run.timelines):
        raise RuntimeError("a request failed")
    spent = 1e6 * (cpu_after.user + cpu_after.system - cpu.user - cpu.system)
    sought = after.prefix_queries - before.prefix_queries
    found = (after.prefix_hits - before.prefix_hits) / sought if sought else 0.0
    steps = after.steps - before.steps
    return _Window(cache, shared, spent / steps, spent / args.requests, found)


def _cost_lines(windows: list[_Window]) -> str:
    without, having = ([w for w in windows if w.cache is cache] for cache in (False, True))
    what = "prompts that share all but their end" if windows[0].shared else "prompts of their own"
    lines = [f"{what} ({100 * statistics.median(w.found for w in having):.0f} % found):"]
    for name, of in (("step", "cpu_per_step"), ("request", "cpu_per_request")):
        a, b = ([getattr(w, of) for w in some] for some in (without, having))
        ratios = [y / x for x, y in zip(a, b, strict=True)]
        low, high = median_interval(ratios)
        lines.append(
            f"  CPU time of a {name}: {statistics.median(a):.0f} us without, "
            f"{statistics.median(b):.0f} with: {100 * (statistics.median(ratios) - 1):+.1f} % "
            f"(95 %: {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)"
        )
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


@contextmanager
def _servers(
    progress: Progress,
    *,
    model: Path | None = None,
    worker: tuple[str, ...] = (),
    scheduler: tuple[str, ...] = (),
) -> Iterator[Servers]:
    quiet = ("--log-level", "warning", "--metrics-listen", "off")
    settings = ServerSettings(
        model=model,
        listen=None,
        simulate=model is None,
        worker_args=(*worker, "--metrics-listen", "off"),
        scheduler_args=("--no-tokenizer", *quiet, *scheduler),
        echo=False,
        stop_patience=40.0,
    )
    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(READY_SECONDS, progress.show)
        yield servers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.prefix_cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    parts = ("first-token", "cost")
    add("--only", nargs="+", choices=parts, default=parts, help="what to measure (default: both)")
    add("--model", default="default", help="as for make (default: %(default)s)")
    add("--prefix", type=int, default=512, help="shared ids, whole blocks (default: %(default)s)")
    add("--rounds", type=int, default=5, help="default: %(default)s")
    threads = len(os.sched_getaffinity(0))
    add("--threads", type=int, default=threads, help="of the worker (default: %(default)s)")
    add("--streams", type=int, default=64, help="of the load (default: %(default)s)")
    add("--requests", type=int, default=512, help="of each window (default: %(default)s)")
    add("--step-ms", type=float, default=2.0, help="of the simulated device (default: 2)")
    add("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
