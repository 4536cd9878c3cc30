"""Talk with the model.

Ctrl-C stops the answer, Ctrl-D ends; /reset forgets the conversation, /help tells more.
When the conversation has grown too long for the model, the oldest questions are forgotten
with their answers, and a line says so; the system message stays.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys

from nanoserve.cli import sampling
from nanoserve.cli.connection import connect
from nanoserve.cli.conversation import Conversation
from nanoserve.cli.interrupts import closing_on_interrupt
from nanoserve.cli.stopwatch import Stopwatch
from nanoserve.cli.terminal import Writer
from nanoserve.client import Client, Generation
from nanoserve.errors import InvalidRequestError, NanoserveError

_DEFAULT_MAX_TOKENS = 512
# The fields that a server names when prompt and max_tokens do not fit.
_LENGTH_FIELDS = frozenset({"chat", "max_tokens"})
_HELP = """\
/reset   forget the conversation so far
/help    this list
/quit    end (so does Ctrl-D)
Ctrl-C   stop the answer; what came of it stays in the conversation
"""
# Not "/etc/passwd: what is it?": that is a question.
_COMMAND = re.compile(r"/[A-Za-z]+(?!\S)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="most tokens of an answer; the conversation keeps that much room free "
        f"(default: {_DEFAULT_MAX_TOKENS}, or half of the model's context if that is less)",
    )
    sampling.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):  # Windows has none
            import readline  # noqa: F401  (gives input() line editing and history)
    with connect(args) as client:
        session = Session(client, args)
        if interactive:
            print(
                f"{client.status().model} at {args.access.address}; /help for help", file=sys.stderr
            )
        while (line := _read_line(interactive)) is not None:
            if line == "/quit":
                break
            try:
                session.handle(line)
            except NanoserveError as error:
                if not interactive:
                    raise
                print(f"{error}\nThe question is forgotten; ask again.", file=sys.stderr)
    return 0


def _read_line(interactive: bool) -> str | None:
    """The next line, or None at the end of the input."""
    while True:
        try:
            return input("> " if interactive else "").strip()
        except EOFError:
            if interactive:
                print()
            return None
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("\n(Ctrl-D ends)", file=sys.stderr)


class Session:
    """One conversation with one server."""

    def __init__(self, client: Client, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args
        self._conversation = Conversation(sampling.opening(args))

    def handle(self, line: str) -> None:
        """A command, or a question to answer. Raises NanoserveError."""
        if line == "/help":
            sys.stderr.write(_HELP)
        elif line == "/reset":
            self._conversation.reset()
        elif _COMMAND.match(line):
            print(f"(no command {line!r}: /help lists them)", file=sys.stderr)
        elif line:
            self._answer(line)

    def _answer(self, question: str) -> None:
        options = sampling.options_from(self._args, self._max_tokens())
        forget = 0
        while True:
            options["messages"] = self._conversation.messages(question, forget)
            stopwatch = Stopwatch()
            generation = self._client.generate(timeout=self._args.timeout, **options)
            try:
                answer = _stream(generation, stopwatch)
                break
            except InvalidRequestError as error:
                if not _is_too_long(error) or forget == len(self._conversation):
                    raise
                forget += 1
        if forget:
            noun = "exchange" if forget == 1 else f"{forget} exchanges"
            print(f"(too long: the oldest {noun} forgotten)", file=sys.stderr)
        if self._args.stats:
            print(stopwatch.summary(), file=sys.stderr)
        # Nothing came before Ctrl-C: as if it had not been asked.
        if answer:
            self._conversation.add(question, answer, forget)

    def _max_tokens(self) -> int:
        if self._args.max_tokens is not None:
            return int(self._args.max_tokens)
        room = self._client.status().max_request_tokens
        return min(_DEFAULT_MAX_TOKENS, room // 2) if room else _DEFAULT_MAX_TOKENS


def _stream(generation: Generation, stopwatch: Stopwatch) -> str:
    """Shows an answer as it comes; returns what came of it until its end or Ctrl-C."""
    writer = Writer()
    answer: list[str] = []
    with generation, closing_on_interrupt(generation) as interrupted:
        try:
            for chunk in generation:
                stopwatch.saw(chunk)
                answer.append(chunk.text)
                writer.write(chunk.text)
        finally:
            writer.end_line()
    if interrupted.is_set():
        print("(stopped)", file=sys.stderr)
    return "".join(answer)


def _is_too_long(error: InvalidRequestError) -> bool:
    return any(violation.field in _LENGTH_FIELDS for violation in error.violations)
