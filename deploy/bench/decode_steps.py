"""`python -m deploy.bench.decode_steps`: what several decodes in a step buy.

The engine alone: CPU time for a token, without wire and clients. Engines with different
`--decode-steps` take turns, so that what else the machine does disturbs all alike.

The servers: a simulated worker with steps of `--step-ms`, and schedulers that take turns on it,
with a front end in a process of its own; bursts of requests from the load tool. Told are tokens a
second as the client gets them, and the CPU time that a token costs each process.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from deploy.bench.batch import Batch
from deploy.bench.engine_alone import VOCAB_SIZE, Answers, Nobody, submission
from deploy.bench.machine import machine
from deploy.bench.ready import free_address
from deploy.bench.worker_process import WorkerProcess
from deploy.local.progress import Progress
from scheduler.core.config import EngineConfig
from scheduler.core.engine import Engine

PROMPT_TOKENS = 16
OUTPUT_TOKENS = 1000  # of the engine alone
WARM_UP_TOKENS = 100  # of each row
TOKENS_AT_A_TIME = 8  # of each row: a multiple of what a step makes


@dataclass(frozen=True, slots=True)
class _Run:
    tokens_per_second: float
    # Microseconds of CPU time a token.
    engine: float
    front_end: float
    worker: float


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    progress = Progress("bench-decode-steps")
    report: dict[str, object] = {"machine": machine()}
    if "engine" in args.only:
        report["engine_us_per_token"] = _engines(args, progress)
    if "servers" in args.only:
        report["servers"] = _servers(args, progress)
    progress.end(f"took {progress.seconds:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _engines(args: argparse.Namespace, progress: Progress) -> dict[str, float]:
    """By rows and decodes in a step."""
    found = {}
    print("engine alone, CPU us a token")
    for rows in args.streams:
        progress.show(f"engine alone, {rows} rows")
        engines = {steps: _rounds(rows, steps) for steps in args.decode_steps}
        seconds: dict[int, list[float]] = {steps: [] for steps in engines}
        for _ in range(args.rounds * 10):
            for steps, rounds in engines.items():
                seconds[steps].append(next(rounds))
        medians = {steps: 1e6 * statistics.median(of) for steps, of in seconds.items()}
        found |= {f"{rows} rows, k {steps}": value for steps, value in medians.items()}
        print(f"{rows:>5} rows  " + _cells({k: f"{v:.2f}" for k, v in medians.items()}))
    return found


def _rounds(rows: int, decode_steps: int) -> Iterator[float]:
    """CPU seconds of a token, over some tokens of each row after the others. Ends with them."""
    link, rng = Answers(device_ns=1000), random.Random(0)
    config = EngineConfig(prefix_cache=False, decode_steps=decode_steps)
    engine = Engine(config, link, Nobody())
    link.start(engine)
    engine.turn()
    for handle in range(rows):
        ids = [rng.randrange(VOCAB_SIZE) for _ in range(PROMPT_TOKENS)]
        engine.submit(submission(handle, ids, OUTPUT_TOKENS))
    _spend(engine, link, rows * WARM_UP_TOKENS)
    while True:
        yield _spend(engine, link, rows * TOKENS_AT_A_TIME)


def _spend(engine: Engine, link: Answers, wanted: int) -> float:
    tokens, seconds = 0, 0.0
    while tokens < wanted:
        start = time.thread_time()
        engine.turn()
        seconds += time.thread_time() - start
        tokens += link.answer()
    return seconds / tokens


def _servers(args: argparse.Namespace, progress: Progress) -> dict[str, list[dict[str, float]]]:
    runs: dict[tuple[int, int], list[_Run]] = {}
    flags = ("--simulate", "--step-ms", str(args.step_ms), "--vocab-size", str(VOCAB_SIZE))
    with WorkerProcess(flags) as worker:
        for number in range(1, args.rounds + 1):
            for steps in args.decode_steps:
                progress.show(f"servers, round {number} of {args.rounds}, {steps} decodes a step")
                quiet = ("--no-tokenizer", "--no-prefix-cache", "--log-level", "warning")
                own = (*quiet, "--frontends", "1", "--decode-steps", str(steps))
                with worker.scheduler(own, listen=free_address()) as address:
                    for streams in args.streams:
                        run = _burst(address, streams, worker, args.output)
                        runs.setdefault((streams, steps), []).append(run)
    print("streams  decodes a step  tokens/s  CPU us a token: engine  front end  worker")
    for (streams, steps), of in sorted(runs.items()):
        speed, engine, front, process = (
            statistics.median(getattr(run, name) for run in of) for name in _Run.__slots__
        )
        costs = f"{engine:>22.2f}  {front:>9.2f}  {process:>6.2f}"
        print(f"{streams:>7}  {steps:>14}  {speed:>8.0f}  {costs}")
    return {f"{n} streams, k {k}": [asdict(run) for run in of] for (n, k), of in runs.items()}


def _burst(address: str, streams: int, worker: WorkerProcess, output: int) -> _Run:
    scheduler = psutil.Process(worker.scheduler_pid)
    groups = ([scheduler], scheduler.children(), [psutil.Process(worker.child.pid)])
    with Batch(streams, PROMPT_TOKENS, VOCAB_SIZE, streams).bursts(address, output) as bursts:
        bursts.send()  # a warm-up
        before = [_cpu_seconds(group) for group in groups]
        times = bursts.send()
        spent = [_cpu_seconds(group) - was for group, was in zip(groups, before, strict=True)]
    return _Run(times.tokens / times.end, *(1e6 * seconds / times.tokens for seconds in spent))


def _cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def _cells(by_steps: dict[int, str]) -> str:
    return "  ".join(f"k {steps}: {text}" for steps, text in by_steps.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.decode_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    parts = ("engine", "servers")
    add("--only", nargs="+", choices=parts, default=parts, help="what to measure (default: both)")
    add("--decode-steps", type=int, nargs="+", default=[1, 2, 4, 8], help="default: 1 2 4 8")
    add("--streams", type=int, nargs="+", default=[1, 32, 256], help="default: 1 32 256")
    add("--output", type=int, default=512, help="output tokens of the servers (default: 512)")
    add("--step-ms", type=float, default=0.3, help="of the worker's device (default: 0.3)")
    add("--rounds", type=int, default=5, help="default: %(default)s")
    add("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
