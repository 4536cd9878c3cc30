"""The flags of `run`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deploy.loadtest.fleet import MOST_PROCESSES
from deploy.loadtest.plan import ENDPOINTS
from nanoserve.channel import DEFAULT_ADDRESS

DEFAULT_SECONDS = 30.0
_Add = Callable[..., None]


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        default=os.environ.get("NANOSERVE_ADDRESS", DEFAULT_ADDRESS),
        help="HOST:PORT or unix:PATH of a nanoserve scheduler, or http://HOST:PORT of a server "
        "with OpenAI's API (default: %(default)s)",
    )
    add = _adder(parser)
    ca = "encrypt, and trust servers with certificates of this CA; system: of a public one"
    add("--tls-ca", str, "FILE", ca, shown="$NANOSERVE_TLS_CA, else no encryption")
    shown = "$NANOSERVE_TOKEN, else the file $NANOSERVE_TOKEN_FILE, else no token"
    add("--token-file", str, "FILE", "holds the token that the server wants", shown=shown)
    _add_arrivals(parser)
    _add_bounds(_adder(parser.add_argument_group("how long")))
    _add_content(_adder(parser.add_argument_group("what is asked")))
    _add_clients(_adder(parser.add_argument_group("how clients behave")))
    _add_openai(_adder(parser.add_argument_group("OpenAI servers")))
    _add_tool(_adder(parser.add_argument_group("the tool itself")))


def _add_arrivals(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how requests arrive (one of the first five)")
    ways = _adder(group.add_mutually_exclusive_group(required=True))
    ways("--rate", float, "R", "open loop: R arrivals a second, whatever the server does")
    ways("--concurrency", int, "N", "closed loop: N users, each with one request at a time")
    ways("--burst", None, "", "all --requests at once")
    ways("--ramp", float, "R", "find the knee: open stages from R requests a second on")
    ways("--replay", None, "", "at the times of --trace")
    add = _adder(group)
    add(
        "--cv",
        float,
        "CV",
        "variation of the gaps of --rate and --ramp: 1 is Poisson, 0 a "
        "constant rate, more comes in bursts (gamma)",
        1.0,
    )
    add("--ramp-factor", float, "F", "rate of a stage over that of the one before", 2.0)
    add("--stage-seconds", float, "SECONDS", "length of a ramp's stage", 20.0)
    add("--bisections", int, "N", "stages that narrow the knee down", 3)
    add("--speed", float, "X", "replay X times as fast", 1.0)


def _add_bounds(add: _Add) -> None:
    add(
        "--requests",
        int,
        "N",
        "most measured requests; of a ramp, no stage goes past",
        shown="512 for a burst of mixed512",
    )
    add(
        "--seconds",
        float,
        "SECONDS",
        "end of the arrivals; of a ramp, no stage ends later",
        shown=f"{DEFAULT_SECONDS:g} for --rate and --concurrency without --requests",
    )
    add(
        "--drain",
        float,
        "SECONDS",
        "after the arrivals: what has not ended by then is given up",
        60.0,
    )
    add("--warm-up-requests", int, "N", "sent at once and awaited before, not measured", 0)
    add("--warm-up-seconds", float, "SECONDS", "arrivals within these are not measured", 0.0)
    add("--seed", int, "N", "of everything random: the same seed sends the same requests", 0)


def _add_content(add: _Add) -> None:
    add(
        "--workload",
        str,
        "NAME",
        "mixed512: 512 prompts of 64 to 1024 random ids, outputs of "
        "16 to 512 tokens, instead of the lengths below",
        choices=("mixed512",),
    )
    lengths = "N, uniform:LOW:HIGH or lognormal:MEAN:SIGMA[:MAX], in tokens"
    add("--prompt-len", str, "LENGTHS", lengths, "128")
    add("--output-len", str, "LENGTHS", "max_tokens, as --prompt-len", "128")
    add(
        "--trace",
        Path,
        "FILE",
        "lengths from a CSV or .jsonl file with time (s), prompt_len, "
        "output_len and, if wanted, group; over and over",
    )
    add(
        "--text",
        Path,
        "FILE",
        "prompts are slices of FILE, a word counting as a token, instead of random token ids",
    )
    add("--shared-prefix", int, "TOKENS", "every prompt begins with as many shared ones", 0)
    add("--prefixes", int, "N", "shared prefixes to choose from", 1)
    add(
        "--turns",
        int,
        "N",
        "conversations of N requests, each prompt with all that was said; "
        "--rate counts conversations",
        1,
    )


def _add_clients(add: _Add) -> None:
    add("--think", float, "SECONDS", "from an answer to the same user's next request", 0.0)
    add("--cancel", float, "SHARE", "of requests, cancelled within their output", 0.0)
    add("--slow-readers", float, "SHARE", "of requests, read slowly", 0.0)
    add("--slow-gap", float, "SECONDS", "a slow reader's pause after each message", 0.1)
    add("--temperature", float, "T", "of sampling", 0.0)
    add(
        "--stop-at-eos",
        None,
        "",
        "outputs may end before --output-len; otherwise ignore_eos "
        "is sent, which an OpenAI server may not know",
    )
    add("--request-timeout", float, "SECONDS", "deadline of each request", 600.0)
    add(
        "--body",
        str,
        "JSON",
        'merged into every request: fields of a GenerateRequest, e.g. {"top_logprobs": 5, '
        '"repetition_penalty": 1.2}, or of an OpenAI server\'s, e.g. {"return_token_ids": true}',
        "{}",
    )


def _add_openai(add: _Add) -> None:
    add(
        "--endpoint",
        str,
        "NAME",
        "/v1/completions or /v1/chat/completions (with --text)",
        "completions",
        choices=ENDPOINTS,
    )
    add("--model", str, "NAME", "model to name", "", shown="the first that /v1/models names")
    add(
        "--vocab-size",
        int,
        "IDS",
        "random ids are less than this",
        shown="as nanoserve says, else 32000",
    )


def _add_tool(add: _Add) -> None:
    add("--processes", int, "N", "that generate", shown=f"one per core, at most {MOST_PROCESSES}")
    add(
        "--realtime",
        None,
        "",
        "they come before all else on the machine, so that they send on time beside a busy server "
        "(SCHED_RR; needs root or CAP_SYS_NICE)",
    )
    add("--sample-interval", float, "SECONDS", "between looks at GetStatus; 0: none", 0.5)
    add("--save", Path, "FILE", "write the run there, for `report` and `compare`; .gz compresses")


def _adder(group: Any) -> _Add:
    """Adds a flag that tells its default; one without a type has no value."""

    def add(
        name: str,
        kind: type | None,
        metavar: str,
        text: str,
        default: Any = None,
        shown: str = "",
        **more: Any,
    ) -> None:
        if kind is None:
            group.add_argument(name, action="store_true", help=text)
            return
        told = shown or ("none" if default is None else f"{default}")
        text = f"{text} (default: {told})".replace("%", "%%")
        if "choices" in more:
            metavar = "{" + ",".join(more["choices"]) + "}"
        group.add_argument(name, type=kind, metavar=metavar, default=default, help=text, **more)

    return add
