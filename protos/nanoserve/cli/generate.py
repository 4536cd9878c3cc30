"""Stream an answer to one prompt.

The prompt goes through the model's chat template as a user's message; with --raw the
model continues it as it stands.
"""

from __future__ import annotations

import argparse
import sys

from nanoserve.cli import sampling
from nanoserve.cli.connection import connect
from nanoserve.cli.interrupts import closing_on_interrupt
from nanoserve.cli.logprob_table import LogprobTable
from nanoserve.cli.stopwatch import Stopwatch
from nanoserve.cli.terminal import Writer
from nanoserve.request import GenerateOptions, Message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the prompt; - reads it from stdin")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--chat", action="store_true", help="use the model's chat template (the default)"
    )
    form.add_argument("--raw", action="store_true", help="continue the prompt as it stands")
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="most tokens of the answer (default: as many as there is room for)",
    )
    parser.add_argument(
        "--top-logprobs",
        type=int,
        metavar="N",
        help="print a line for each token: its text, id, log-probability and percentage, and ids "
        "and log-probabilities of the N most likely tokens, 0 to 20; all as the model says, before "
        "penalties and temperature",
    )
    sampling.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    options = sampling.options_from(args, args.max_tokens)
    options["top_logprobs"] = args.top_logprobs
    if args.raw:
        if args.system:
            raise ValueError("--system needs the chat template: leave out --raw or --system")
        return _stream(args, prompt, options)
    question = Message(role="user", content=prompt)
    options["messages"] = [*sampling.opening(args), question]
    return _stream(args, None, options)


def _stream(args: argparse.Namespace, prompt: str | None, options: GenerateOptions) -> int:
    writer, stopwatch = Writer(), Stopwatch()
    table = LogprobTable() if args.top_logprobs is not None else None
    with (
        connect(args) as client,
        client.generate(prompt, timeout=args.timeout, **options) as generation,
        closing_on_interrupt(generation) as interrupted,
    ):
        try:
            for chunk in generation:
                stopwatch.saw(chunk)
                writer.write(chunk.text if table is None else table.lines(chunk))
        finally:
            writer.end_line()
    if interrupted.is_set():
        raise KeyboardInterrupt
    if args.stats:
        print(stopwatch.summary(), file=sys.stderr)
    return 0
