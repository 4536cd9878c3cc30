"""`python -m deploy.bench.prefix_cache`: what the prefix cache buys, and what it costs.

First tokens: on the model, prompts of a shared beginning and a few ids of their own, sent one
after the other. The first of each round computes the beginning, those behind it find it. Times
are the client's, from sending to the answer of one token.

Costs: CPU time of the engine for a step, without wire and clients. An engine with the cache and
one without take turns step by step, so that what else the machine does disturbs both alike;
once with prompts that share nothing, once with ones that share all but a few ids.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from deploy.bench.engine_alone import VOCAB_SIZE, Answers, Nobody, submission
from deploy.bench.machine import machine
from deploy.bench.ready import READY_SECONDS
from deploy.local.progress import Progress
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked
from deploy.model.fetch import fetch
from nanoserve import Client
from scheduler.core.config import EngineConfig
from scheduler.core.engine import Engine

OWN_TOKENS = 16
OUTPUT_TOKENS = 64
WARM_UP_STEPS = 200


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
        for shared in (False, True):
            progress.show(f"steps, {'shared' if shared else 'nothing shared'}")
            seconds = _costs(shared, args)
            name = "shared" if shared else "own"
            report[f"step_seconds_{name}"] = {str(cache): of for cache, of in seconds.items()}
            print(_cost_line(shared, seconds))
    progress.end(f"it took {progress.seconds:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _first_tokens(args: argparse.Namespace, progress: Progress) -> dict[str, list[float]]:
    """Seconds, by what was found."""
    folder = fetch(args.model)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    computed, found = f"{args.prefix} tokens to compute", f"{args.prefix} tokens found"
    seconds: dict[str, list[float]] = {computed: [], found: []}
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(vocab_size) for _ in range(count)]

    settings = ServerSettings(
        model=folder,
        listen=None,
        simulate=False,
        worker_args=("--dtype", "bfloat16", "--threads", str(args.threads)),
        scheduler_args=("--no-tokenizer",),
        echo=False,
        stop_patience=40.0,
    )
    with Servers(settings, Unasked()) as servers, Client(servers.address) as client:
        servers.wait_until_ready(READY_SECONDS, progress.show)
        _time_to_first(client, ids(args.prefix))  # warms up
        for number in range(1, args.rounds + 1):
            progress.show(f"round {number} of {args.rounds}")
            beginning = ids(args.prefix)
            for name in (computed, *[found] * 3):
                taken, cached = _time_to_first(client, beginning + ids(OWN_TOKENS))
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


def _engine_steps(cache: bool, shared: bool, args: argparse.Namespace) -> Iterator[float]:
    """CPU seconds of one step after another, with `args.streams` requests at a time."""
    link, rng = Answers(device_ns=2_000_000), random.Random(0)
    engine = Engine(EngineConfig(prefix_cache=cache), link, Nobody())
    link.start(engine)
    beginning = [rng.randrange(VOCAB_SIZE) for _ in range(args.prefix)]
    asked = ended = 0
    for number in itertools.count():
        while asked - ended < args.streams:
            asked += 1
            own = [rng.randrange(VOCAB_SIZE) for _ in range(args.prefix)]
            ids = (beginning if shared else own) + own[:OWN_TOKENS]
            engine.submit(submission(asked, ids, OUTPUT_TOKENS))
        start = time.thread_time()
        engine.turn()
        seconds = time.thread_time() - start
        ended = asked - engine.status().running - engine.status().waiting
        link.answer()
        if number >= WARM_UP_STEPS:
            yield seconds


def _costs(shared: bool, args: argparse.Namespace) -> dict[bool, list[float]]:
    """Seconds of CPU for each step, without and with the cache."""
    engines = {cache: _engine_steps(cache, shared, args) for cache in (False, True)}
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(args.steps):
        for cache, steps in engines.items():
            seconds[cache].append(next(steps))
    return seconds


def _cost_line(shared: bool, seconds: dict[bool, list[float]]) -> str:
    what = "shared beginnings" if shared else "nothing shared"
    figures = [
        f"{name} {1e6 * of(seconds[False]):.0f} us without, {1e6 * of(seconds[True]):.0f} with"
        for name, of in (("median", statistics.median), ("mean", statistics.fmean))
    ]
    return f"engine, CPU time of a step, {what}: {'; '.join(figures)}"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


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
    add("--streams", type=int, default=64, help="requests at a time (default: %(default)s)")
    add("--steps", type=int, default=3000, help="of the engine, each (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
