"""`python -m deploy.soak`: faults under load, with real processes.

Two parts, each with its own pair of servers: the simulated worker, for volume, and a model, the
default one in float32, for text. While clients read, cancel, time out, dawdle and send nonsense,
the worker is killed, stopped, replaced and cut off, and the scheduler killed, stopped and taken
over from. Every call must end once, with the status that it must have and the tokens, text and
log-probabilities of an undisturbed run; half of them have penalties. One that lost its scheduler
ends UNAVAILABLE and is asked again. The same seed and times make the same schedule.
In a soak of 25 minutes or more no scheduler ends after a third of the time and no worker after
half of it, so that the memory of the last ones can be judged.
Exit status 0 if nothing is to be complained about.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shlex
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from deploy.bench.machine import machine
from deploy.local.progress import Progress
from deploy.model.fetch import fetch
from deploy.soak import report
from deploy.soak.client import Answer
from deploy.soak.faults import KINDS, last_end, schedule
from deploy.soak.questions import (
    CRASH_ID,
    HANG_ID,
    PENALTIES,
    VOCAB,
    IdQuestions,
    Question,
    SimulatedQuestions,
    TextQuestions,
)
from deploy.soak.run import Result, Soak
from deploy.soak.stand import Stand
from nanoserve import AsyncClient, TokenLogprobs, TopLogprob
from worker.simulated_logprobs import expected_logprobs
from worker.simulated_tokens import expected_tokens

_SIMULATED = [
    *("--simulate", "--vocab-size", str(VOCAB), "--max-model-len", "512", "--step-ms", "3"),
    *("--num-blocks", "400", "--max-rows", "32", "--avoid-tokens", f"{CRASH_ID},{HANG_ID}"),
    *("--crash-tokens", str(CRASH_ID), "--hang-tokens", str(HANG_ID), "--step-timeout", "3"),
]
_POISON_EVERY = 400
# Beyond any step's time on a busy machine. The scheduler gives up one that hangs.
_STEP_TIMEOUTS = {"worker": ["--step-timeout", "30"], "scheduler": ["--step-timeout", "12"]}
_HANG_SECONDS = {"simulated": 6.0, "model": 14.0}


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
        for complaint in result.complaints[: report.MOST_COMPLAINTS]:
            print(f"  ! {complaint}")
    if args.json:
        found = {name: report.as_json(result) for name, result in results.items()}
        about = {"seed": seed, "machine": machine(), "arguments": sys.argv[1:]}
        args.json.write_text(report.lines(about | found) + "\n")
    if args.plot:
        report.plot_memory(args.plot, results)
    return 1 if complaints else 0


async def _simulated(seed: int, args: argparse.Namespace) -> Result:
    questions = SimulatedQuestions(seed, _POISON_EVERY, last_end("worker", args.seconds))
    hang = _HANG_SECONDS["simulated"]
    faults = schedule(seed, args.seconds, args.fault_every, hang, args.faults)
    scheduler = ["--no-tokenizer", "--step-timeout", "4"]
    if args.frontends:
        scheduler += ["--frontends", str(args.frontends)]
    stand = Stand(_SIMULATED, scheduler, may_crash=True)
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
    options: dict[str, Any] = dict(question.options)
    names = ("temperature", "seed", *PENALTIES)
    drawn = tuple((name, options[name]) for name in names if name in options)
    prompt, top = tuple(options["token_ids"]), options.get("top_logprobs")
    return _expected(prompt, options["max_tokens"], drawn, top)


@lru_cache(maxsize=1000)  # for those that are asked again
def _expected(
    prompt: tuple[int, ...], count: int, drawn: tuple[tuple[str, Any], ...], top: int | None
) -> Answer:
    avoid = (CRASH_ID, HANG_ID)
    tokens = tuple(expected_tokens(prompt, count, VOCAB, **dict(drawn), avoid=avoid))
    if top is None:
        return Answer(tokens)
    logprobs = expected_logprobs(prompt, tokens, VOCAB, top, avoid=avoid)
    return Answer(tokens, logprobs=tuple(_token_logprobs(one) for one in logprobs))


def _token_logprobs(own_then_top: list[tuple[int, float]]) -> TokenLogprobs:
    (_, own), *top = own_then_top
    return TokenLogprobs(own, tuple(TopLogprob(*likely) for likely in top))


async def _model(seed: int, args: argparse.Namespace) -> Result:
    folder = await asyncio.to_thread(fetch, args.model)
    flags = ["--model", str(folder)]
    worker = [*flags, "--dtype", args.dtype, "--num-blocks", str(args.num_blocks)]
    worker += [*_STEP_TIMEOUTS["worker"], *shlex.split(args.worker_args)]
    scheduler = [*flags, *_STEP_TIMEOUTS["scheduler"]]
    scheduler += ["--max-step-tokens", str(args.model_step_tokens)]
    scheduler += shlex.split(args.scheduler_args)
    questions: TextQuestions | IdQuestions = TextQuestions(seed, args.model_tokens)
    if args.prompt_len:
        vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
        questions = IdQuestions(seed, vocab_size, args.prompt_len, args.model_tokens)
        scheduler.append("--no-tokenizer")
    hang = _HANG_SECONDS["model"]
    faults = schedule(seed + 1, args.model_seconds, args.model_fault_every, hang, args.faults)
    stand = Stand(worker, scheduler)
    progress = Progress("model")
    async with stand:
        tolerance = args.logprob_tolerance
        answers = await _undisturbed(stand, questions.distinct(), tolerance, progress.show)
        if isinstance(questions, TextQuestions):
            added = questions.add_stops(lambda question: answers[question.key].text or "")
            answers |= await _undisturbed(stand, added, tolerance, progress.show)
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
    stand: Stand, questions: list[Question], tolerance: float, progress: Callable[[str], None]
) -> dict[str, Answer]:
    """The answers of servers that nothing happens to, by question. Raises RuntimeError if one
    of them ends."""
    progress(f"{len(questions)} answers without faults")
    async with AsyncClient(stand.address) as client:
        streams = [client.generate(**question.options) for question in questions]  # type: ignore[arg-type]
        tasks = [asyncio.create_task(stream.collect()) for stream in streams]
        await stand.while_up(tasks)
    if stand.is_over:
        raise RuntimeError("without any fault: " + "\n".join(stand.all_strange))
    done = [task.result() for task in tasks]
    return {
        question.key: Answer(completion.token_ids, completion.text, completion.logprobs, tolerance)
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
    add("--model", default="default", help="its folder (default: the default model's)")
    add("--prompt-len", type=int, default=0, help="random ids for it, so many, instead of texts")
    add("--dtype", default="float32", help="its worker's (default: float32, which is exact)")
    add("--num-blocks", type=int, default=64, help="of its K/V pool (default: 64)")
    add("--worker-args", default="", help="more of its worker's, in one argument")
    add("--scheduler-args", default="", help="of its scheduler's, likewise")
    add("--model-step-tokens", type=int, default=64, help="most of one of its steps (default: 64)")
    add("--model-tokens", type=int, default=48, help="most of an output of its (default: 48)")
    add(
        "--logprob-tolerance",
        type=float,
        default=1e-4,
        help="of its log-probabilities (default: 0.0001); of the simulated worker's they are exact",
    )
    add("--streams", type=int, default=24, help="calls at a time (default: 24)")
    add("--model-streams", type=int, default=6, help="of the model's (default: 6)")
    add("--fault-every", type=float, default=4.0, help="mean seconds between faults (default: 4)")
    add("--model-fault-every", type=float, default=15.0, help="the model's (default: 15)")
    add("--frontends", type=int, default=0, help="processes of the simulated worker's scheduler")
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
