"""The flags that say how to generate, shared by `generate` and `chat`."""

from __future__ import annotations

import argparse

from nanoserve.request import GenerateOptions, Message

# Below the server's 1: at 1 a small model draws a token that fits nowhere every few words.
TEMPERATURE = 0.7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="system message of the conversation")
    parser.add_argument(
        "--temperature",
        type=float,
        default=TEMPERATURE,
        metavar="T",
        help="0 for the most likely token each time, or 0.01 to 100 (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="same seed, same text (default: a new one each time)"
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be given several times",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="P",
        help="above 1 makes tokens that are in prompt or answer less likely, below 1 more likely: "
        "0.01 to 100 (default: 1, neither)",
    )
    parser.add_argument(
        "--frequency-penalty",
        type=float,
        metavar="P",
        help="above 0 makes a token less likely for each time that it is in the answer, below 0 "
        "more likely: -2 to 2 (default: 0, neither)",
    )
    parser.add_argument(
        "--presence-penalty",
        type=float,
        metavar="P",
        help="the same for tokens that are in the answer, however often: -2 to 2 (default: 0, "
        "neither)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="most time for one answer (default: the server's limit)",
    )
    parser.add_argument(
        "--stats",
        action="store_true",
        help="print time to first token and tokens per second on stderr",
    )


def options_from(args: argparse.Namespace, max_tokens: int | None) -> GenerateOptions:
    """The options of `generate` that the flags ask for."""
    return GenerateOptions(
        max_tokens=max_tokens,
        temperature=args.temperature,
        seed=args.seed,
        stop=args.stop,
        repetition_penalty=args.repetition_penalty,
        frequency_penalty=args.frequency_penalty,
        presence_penalty=args.presence_penalty,
    )


def opening(args: argparse.Namespace) -> list[Message]:
    """The messages that a conversation begins with."""
    return [Message(role="system", content=args.system)] if args.system else []
