"""`python -m worker`: parses flags and starts the process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from worker.stop_signals import StopSignals


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m worker",
        description="Holds the model and its K/V pool and runs the steps of one scheduler.",
    )
    _add_process(parser)
    _add_model(parser.add_argument_group("model and pool"))
    _add_limits(parser.add_argument_group("limits, which the scheduler learns"))
    _add_simulation(parser.add_argument_group("simulated worker (no torch, no weights)"))
    options = parser.parse_args(arguments)
    if not options.simulate and options.model is None:
        parser.error("--model DIR is needed, or --simulate")
    return options


def _add_process(parser: argparse.ArgumentParser) -> None:
    add = _adder(parser)
    add("--listen", "HOST:PORT (port 0: a free one) or unix:PATH", "127.0.0.1:50052", "ADDRESS")
    add("--drain-timeout", "how long an open stream may go on after SIGTERM", 30.0, "SECONDS")
    flag = parser.add_argument
    flag("--insecure", action="store_true", help="listen where other machines can reach it")
    flag(
        "--debug",
        action="store_true",
        help="compare every slot with the row's block table, and log more",
    )


def _add_model(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    group.add_argument("--model", type=Path, metavar="DIR", help="Hugging Face model folder")
    group.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda if there is a device (default: auto)",
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="auto: the model's own (default: auto)",
    )
    add("--num-blocks", "blocks of the K/V pool, the scratch block included", int)
    add("--kv-memory", "size of the K/V pool, such as 8GiB, instead of --num-blocks", str, "SIZE")
    add("--gpu-memory-utilization", "share of a GPU to fill without either", 0.9, "SHARE")
    add("--block-size", "tokens per block", 16)
    add("--threads", "CPU threads of torch, by default one per core", int)


def _add_limits(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    add("--max-rows", "requests that run at a time", 256)
    add("--max-model-len", "tokens of a request, by default the model's limit", int)
    add("--max-step-tokens", "tokens of a step, by default 8192 on CUDA and 2048 elsewhere", int)
    add("--max-steps-in-flight", "unanswered steps", 4)
    add("--max-decode-steps", "decode repetitions of a step", 8)


def _add_simulation(group: argparse._ArgumentGroup) -> None:
    add = _adder(group)
    group.add_argument(
        "--simulate", action="store_true", help="answer tokens that are a function of the row's own"
    )
    add("--vocab-size", "token ids, by default those of --model, or 32000", int)
    add("--step-ms", "device time of a step, milliseconds", 0.0, "MS")
    add("--token-us", "device time added per query token, microseconds", 0.0, "US")
    add("--script", "JSON list of ids to answer by output position; the last repeats", Path, "FILE")
    add("--avoid-tokens", "ids never drawn, such as end tokens", _ids, "ID,ID")
    add("--non-finite-tokens", "a row that ends on one of them is not finite", _ids, "ID,ID")
    add("--crash-tokens", "a step that computes one of them is fatal", _ids, "ID,ID")


def _adder(group: argparse._ActionsContainer) -> Callable[..., None]:
    """Adds a flag with a value: of `default`'s type, or of a type without a default."""

    def add(name: str, text: str, default: Any, metavar: str = "N") -> None:
        if callable(default):
            group.add_argument(name, type=default, metavar=metavar, help=text)
        else:
            group.add_argument(
                name,
                type=type(default),
                default=default,
                metavar=metavar,
                help=f"{text} (default: {default})",
            )

    return add


def _ids(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.split(",") if part)


def main() -> NoReturn:
    signals = StopSignals()
    options = parse()
    # After the handlers are in place: these take a while.
    from worker.address import ListenAddress
    from worker.process import ProcessOptions, run, start_logging
    from worker.start import make_executor

    start_logging("debug" if options.debug else "info")
    try:
        process = ProcessOptions(
            listen=ListenAddress(options.listen),
            insecure=options.insecure,
            drain_timeout=options.drain_timeout,
            check_slots=options.debug or options.simulate,
        )
    except ValueError as error:
        print(f"python -m worker: {error}", file=sys.stderr)
        sys.exit(2)
    run(signals, process, lambda: make_executor(options))


if __name__ == "__main__":
    main()
