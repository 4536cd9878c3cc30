"""`python -m deploy.bench.gpu`: what the server does on a GPU, against floors and against vLLM.

Random weights are made on the device. A worker process holds them; a scheduler with front ends in
processes of their own, and client processes that read text, are the rest of the way. All requests
of a batch are sent at once; a step is (T(all tokens) - T(one token)) over the tokens between.
A first token is of one user, who sends a prompt when the one before has its token, over one
connection. Prompts are new each time, and no prefix is cached. Tables on stdout, everything as JSON
in a file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from deploy.bench.floor import Rates
from deploy.bench.gpu.attention import attention_rows
from deploy.bench.gpu.measure import Sizes
from deploy.bench.gpu.model_bench import KINDS, ModelBench, Options
from deploy.bench.gpu.report import Report
from deploy.bench.machine import machine
from deploy.loadtest.fleet import LoadError
from deploy.local.child import ROOT, environment
from deploy.local.progress import Progress
from deploy.model.random_llama import SHAPES

_DEFAULT_SHAPES = ("1b", "8b")


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    shapes = [name for name in args.only if name in SHAPES] or list(_DEFAULT_SHAPES)
    kinds = frozenset(name for name in args.only if name in KINDS) or frozenset(KINDS)
    try:
        sizes = Sizes(tuple(args.streams), args.prompt, args.output, args.repetitions, args.clients)
        options = Options(
            device=args.device,
            kinds=kinds,
            frontends=args.frontends,
            decode_steps=args.decode_steps,
            worker_args=tuple(shlex.split(args.worker_args)),
            scheduler_args=tuple(shlex.split(args.scheduler_args)),
        )
    except ValueError as error:
        parser.error(str(error))
    settings = {name: str(value) for name, value in vars(args).items()}
    report = Report({"settings": settings, "machine": machine()})
    try:
        with tempfile.TemporaryDirectory(prefix="nanoserve-") as temporary:
            _measure(shapes, args.weights or Path(temporary), sizes, options, report)
    finally:
        args.json.write_text(json.dumps(report.values, indent=1) + "\n")
    return 1 if report.failed else 0


def _measure(
    shapes: list[str], weights: Path, sizes: Sizes, options: Options, report: Report
) -> None:
    """What fails ends the rows of its model."""
    progress = Progress("bench-gpu")
    progress.show("the card alone, and weights")
    try:
        card = _card(weights, shapes, options)
    except RuntimeError as error:
        report.error(str(error))
        return
    rates = Rates(**card["rates"])
    report.card(card, rates)
    if failure := card["attention_failure"]:
        report.error(f"attention could not be timed:\n{failure}")
    report.rows(attention_rows(card["attention"], rates))
    for shape in shapes if options.needs_models else []:
        bench = ModelBench(shape, weights / shape, rates, sizes, options, progress.show)
        try:
            report.rows(bench.run())
        except (RuntimeError, LoadError) as error:
            report.error(str(error))
        report.starts(bench.starts)
    progress.end(f"took {progress.seconds:.0f} s")


def _card(weights: Path, shapes: list[str], options: Options) -> dict[str, Any]:
    """What deploy/bench/gpu/card.py finds. Raises RuntimeError with the end of its output."""
    command = [sys.executable, "-m", "deploy.bench.gpu.card", "--weights", str(weights)]
    command += ["--device", options.device]
    if options.needs_models:
        command += ["--shapes", *shapes]
    if "attention" in options.kinds:
        command.append("--attention")
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the card could not be measured:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--only",
        nargs="+",
        choices=(*SHAPES, *KINDS),
        default=[],
        metavar="NAME",
        help=f"of models ({', '.join(SHAPES)}) and of rows ({', '.join(KINDS)}); default: all rows "
        f"of {' and '.join(_DEFAULT_SHAPES)}",
    )
    add("--streams", type=int, nargs="+", default=[1, 32, 256], help="default: 1 32 256")
    add(
        "--prompt",
        type=int,
        default=512,
        help="ids of a prompt, but for prefill and mixed512 (default: %(default)s)",
    )
    add("--output", type=int, default=256, help="its output tokens (default: %(default)s)")
    add("--repetitions", type=int, default=5, help="of each row (default: %(default)s)")
    add("--clients", type=int, default=4, help="client processes (default: %(default)s)")
    add("--frontends", type=int, default=4, help="of the scheduler (default: %(default)s)")
    add(
        "--decode-steps",
        type=int,
        default=8,
        metavar="K",
        help="measure decodes once more with up to K in a step, as the scheduler's flag of that "
        "name; 1: do not (default: %(default)s)",
    )
    add("--weights", type=Path, metavar="DIR", help="keep them there (default: a temporary folder)")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try this out")
    add("--worker-args", default="", metavar="FLAGS", help="more flags for the worker")
    add("--scheduler-args", default="", metavar="FLAGS", help="more flags for the scheduler")
    text = "where all of it is written (default: %(default)s)"
    add("--json", type=Path, default=Path("bench-gpu.json"), metavar="FILE", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
