"""`python -m deploy.soak`: faults under load, with real processes.

Two parts, each with its own pair of servers: the simulated worker, for volume, and a model, the
default one in float32, for text. While clients read, cancel, time out, dawdle and send nonsense,
the worker is killed, stopped, replaced and cut off. Every call must end once, with the status
that it must have and the tokens that an undisturbed run gives. The same seed makes the same
schedule.
Exit status 0 if nothing is to be complained about.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from deploy.bench.machine import machine
from deploy.local.progress import Progress
from deploy.model.fetch import fetch
from deploy.soak import report
from deploy.soak.client import Answer
from deploy.soak.faults import KINDS, schedule
from deploy.soak.questions import (
    CRASH_ID,
    HANG_ID,
    VOCAB,
    IdQuestions,
    Question,
    SimulatedQuestions,
    TextQuestions,
)
from deploy.soak.run import Result, Soak
from deploy.soak.stand import Stand
from nanoserve import AsyncClient
from worker.simulated_tokens import expected_tokens

_SIMULATED = [
    *("--simulate", "--vocab-size", str(VOCAB), "--max-model-len", "512", "--step-ms", "3"),
    *("--num-blocks", "400", "--max-rows", "32", "--avoid-tokens", f"{CRASH_ID},{HANG_ID}"),
    *("--crash-tokens", str(CRASH_ID), "--hang-tokens", str(HANG_ID), "--step-timeout", "2"),
]
_POISON_EVERY = 400
# So that a stopped worker is given up within a fault's length.
_SCHEDULER = ["--step-timeout", "4"]


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    seed = secrets.randbelow(10**6) if args.seed is None else args.seed
    print(f"seed {seed}: repeat with --seed {seed}")
    results: dict[str, Result] = {}
    if args.seconds:
        results["simulated worker"] = asyncio.run(_simulated(seed, args))
    if args.model_seconds:
        results[f"{args.model} model"] = asyncio.run(_model(seed, args))
    complaints = 0
    for name, result in results.items():
        report.judge_growth(result)
        print(report.table(name, result))
        complaints += len(result.complaints)
        for complaint in result.complaints[:20]:
            print(f"  ! {complaint}")
    if args.json:
        found = {name: report.as_json(result) for name, result in results.items()}
        about = {"seed": seed, "machine": machine(), "arguments": sys.argv[1:]}
        args.json.write_text(json.dumps(about | found, indent=1) + "\n")
    if args.plot:
        report.plot_memory(args.plot, results)
    return 1 if complaints else 0


async def _simulated(seed: int, args: argparse.Namespace) -> Result:
    questions = SimulatedQuestions(seed, _POISON_EVERY)
    faults = schedule(seed, args.seconds, args.fault_every, args.faults)
    stand = Stand(_SIMULATED, ["--no-tokenizer", *_SCHEDULER])
    async with stand:
        soak = Soak(
            stand,
            questions.question,
            _simulated_answer,
            faults,
            args.seconds,
            args.streams,
            Progress("simulated worker").show,
        )
        result = await soak.run()
    result.complaints += stand.strange
    return result


def _simulated_answer(question: Question) -> Answer:
    options = question.options
    prompt, count = tuple(options["token_ids"]), options["max_tokens"]  # type: ignore[arg-type]
    return Answer(_expected(prompt, count, options["temperature"], options["seed"]))


@cache
def _expected(
    prompt: tuple[int, ...], count: int, temperature: float, seed: int
) -> tuple[int, ...]:
    avoid = (CRASH_ID, HANG_ID)
    return tuple(
        expected_tokens(prompt, count, VOCAB, temperature=temperature, seed=seed, avoid=avoid)
    )


async def _model(seed: int, args: argparse.Namespace) -> Result:
    folder = await asyncio.to_thread(fetch, args.model)
    flags = ["--model", str(folder)]
    worker = [*flags, "--dtype", args.dtype, "--num-blocks", str(args.num_blocks)]
    scheduler = [*flags, "--step-timeout", "40"]
    questions: TextQuestions | IdQuestions = TextQuestions(seed, max_tokens=48)
    if not (folder / "tokenizer.json").exists():
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        questions = IdQuestions(seed, vocab_size, prompt_len=512, max_tokens=256)
        scheduler.append("--no-tokenizer")
    # A worker of a real model takes seconds to start: fewer faults.
    faults = schedule(seed + 1, args.model_seconds, max(args.fault_every, 15.0), args.faults)
    stand = Stand([*worker, "--step-timeout", "30"], scheduler)
    progress = Progress("model")
    async with stand:
        answers = await _undisturbed(stand, questions.distinct(), progress.show)
        soak = Soak(
            stand,
            questions.question,
            lambda question: answers[question.key],
            faults,
            args.model_seconds,
            args.model_streams,
            progress.show,
        )
        result = await soak.run()
    result.complaints += stand.strange
    return result


async def _undisturbed(
    stand: Stand, questions: list[Question], progress: Callable[[str], None]
) -> dict[str, Answer]:
    """The answers of servers that nothing happens to, by question."""
    progress(f"{len(questions)} answers without faults")
    async with AsyncClient(stand.address) as client:
        streams = [client.generate(**question.options) for question in questions]  # type: ignore[arg-type]
        done = [await stream.collect() for stream in streams]
    return {
        question.key: Answer(completion.token_ids, completion.text)
        for question, completion in zip(questions, done, strict=True)
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seed", type=int, help="of requests and faults (default: drawn and printed)")
    add("--seconds", type=_seconds, default=60.0, help="of simulated load (default: 60; 0: none)")
    add("--model-seconds", type=_seconds, default=45.0, help="of a model's (default: 45; 0: none)")
    add("--model", default="default", help="its folder; without a tokenizer random ids are asked")
    add("--dtype", default="float32", help="its worker's (default: float32, which is exact)")
    add("--num-blocks", type=int, default=64, help="of its K/V pool (default: 64)")
    add("--streams", type=int, default=24, help="calls at a time (default: 24)")
    add("--model-streams", type=int, default=6, help="of the model's (default: 6)")
    add("--fault-every", type=float, default=4.0, help="mean seconds between faults (default: 4)")
    add("--faults", nargs="+", choices=KINDS, default=list(KINDS), help="kinds (default: all)")
    add("--json", type=Path, metavar="FILE", help="what was found, with the faults")
    add("--plot", type=Path, metavar="FILE", help="resident memory over time, a PNG")
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text}: must be from 0 to 86400 seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
