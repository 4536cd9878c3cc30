"""`python -m deploy.bench.cpu`: decode and prefill speed on this machine's CPU, through
gRPC, beside transformers in the same run.

Decode: streams of `--prompt` random ids and `--output` greedy tokens, all sent at once;
tokens per second of streams * (output - 1) / (T(output tokens) - T(1 token)). Drawn: the same by
us at temperature 1, which is a request's own unless it says otherwise. Prefill: one prompt of 512
ids to its first token. Every figure is the median over rounds in which all take turns. The floor
is deploy/bench/floor.py's, with rates of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path

from deploy.bench.batch import Batch
from deploy.bench.floor import ModelSize, Rates, decode_floor, measure_rates, prefill_floor
from deploy.bench.machine import machine
from deploy.bench.peer_transformers import Peer
from deploy.local.progress import Progress
from deploy.local.servers import Servers, ServerSettings
from deploy.local.stop_signals import Unasked
from deploy.model.fetch import fetch

PREFILL_TOKENS = 512


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    folder = fetch(args.model)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    settings = ServerSettings(
        model=folder,
        listen=None,
        simulate=False,
        worker_args=("--dtype", "bfloat16", "--threads", str(args.threads)),
        # The same prompts come twice, and are to be computed twice.
        scheduler_args=("--no-prefix-cache",),
        echo=False,
        stop_patience=40.0,
    )
    progress = Progress("bench-cpu")
    with Servers(settings, Unasked()) as servers:
        servers.wait_until_ready(600, progress.show)
        rates = measure_rates(args.threads)
        peer = None if args.no_peer else Peer(folder, args.threads)
        report = Rounds(servers.address, peer, vocab_size, args).run(progress)
    floors = _floors(rates, ModelSize.of(folder), args)
    print(
        f"this machine reads {rates.read_bytes / 1e9:.1f} GB/s and multiplies "
        f"{rates.bf16_operations / 1e9:.0f} GFLOP/s"
    )
    print(_table(report, floors))
    report |= {"machine": machine(), "rates": asdict(rates), "floors": floors}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


class Rounds:
    """Measures each size once per round, ours and the peer's in turn."""

    def __init__(
        self, address: str, peer: Peer | None, vocab_size: int, args: argparse.Namespace
    ) -> None:
        self._address = address
        self._peer = peer
        self._vocab_size = vocab_size
        self._args = args

    def run(self, progress: Progress) -> dict[str, object]:
        """{"decode": {streams: {"ours": [tok/s], "drawn": [...], "transformers": [...]}},
        "prefill": {...}}."""
        args = self._args
        decode: dict[int, dict[str, list[float]]] = {n: {} for n in args.streams}
        prefill: dict[str, list[float]] = {}
        self._decode(max(args.streams), 8, 0)  # warms both up
        for round_number in range(1, args.rounds + 1):
            for streams in args.streams:
                progress.show(f"round {round_number} of {args.rounds}, {streams} streams")
                _append(decode[streams], self._decode(streams, args.output, round_number))
            _append(prefill, self._prefill(round_number))
        progress.end(f"{args.rounds} rounds took {progress.seconds:.0f} s")
        return {"decode": decode, "prefill": prefill}

    def _decode(self, streams: int, output: int, seed: int) -> dict[str, float]:
        batch = Batch(streams, self._args.prompt, self._vocab_size, seed)
        made = streams * (output - 1)
        rates = {}
        for name, one in (("ours", batch), ("drawn", replace(batch, temperature=1.0))):
            seconds = one.run(self._address, output).end - one.run(self._address, 1).end
            rates[name] = made / seconds
        if self._peer:
            prompts = batch.prompts()
            seconds = self._peer.seconds(prompts, output) - self._peer.seconds(prompts, 1)
            rates["transformers"] = made / seconds
        return rates

    def _prefill(self, seed: int) -> dict[str, float]:
        batch = Batch(1, PREFILL_TOKENS, self._vocab_size, seed)
        rates = {"ours": PREFILL_TOKENS / batch.run(self._address, 1).first_tokens[0]}
        if self._peer:
            rates["transformers"] = PREFILL_TOKENS / self._peer.seconds(batch.prompts(), 1)
        return rates


def _append(to: dict[str, list[float]], rates: dict[str, float]) -> None:
    for engine, rate in rates.items():
        to.setdefault(engine, []).append(rate)


def _floors(rates: Rates, model: ModelSize, args: argparse.Namespace) -> dict[str, float]:
    """Tokens per second that the floor allows, by the rows of the table."""
    context = args.prompt + args.output / 2
    floors = {_decode_name(n): n / decode_floor(rates, model, n, context) for n in args.streams}
    return floors | {_PREFILL_NAME: PREFILL_TOKENS / prefill_floor(rates, model, PREFILL_TOKENS)}


def _table(report: dict[str, object], floors: dict[str, float]) -> str:
    lines = [
        f"{'tokens per second':<20}{'ours':>8}{'floor':>8}{'share':>7}{'drawn':>8}"
        f"{'transformers':>14}{'ratio':>7}"
    ]
    rows = {_decode_name(n): rates for n, rates in report["decode"].items()}
    for name, rates in (rows | {_PREFILL_NAME: report["prefill"]}).items():
        ours = statistics.median(rates["ours"])
        line = f"{name:<20}{ours:>8.0f}{floors[name]:>8.0f}{ours / floors[name]:>7.0%}"
        line += f"{statistics.median(rates['drawn']):>8.0f}" if "drawn" in rates else " " * 8
        if "transformers" in rates:
            ratios = [a / b for a, b in zip(rates["ours"], rates["transformers"], strict=True)]
            peer = statistics.median(rates["transformers"])
            line += f"{peer:>14.0f}{statistics.median(ratios):>7.2f}"
        lines.append(line)
    return "\n".join(lines)


_PREFILL_NAME = f"prefill {PREFILL_TOKENS}"


def _decode_name(streams: int) -> str:
    return f"decode, {streams} streams"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.cpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="default", help="as for make (default: %(default)s)")
    add("--streams", type=int, nargs="+", default=[1, 8, 32], help="default: 1 8 32")
    add("--prompt", type=int, default=128, help="prompt ids (default: %(default)s)")
    add("--output", type=int, default=128, help="output tokens (default: %(default)s)")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    threads = len(os.sched_getaffinity(0))
    add("--threads", type=int, default=threads, help="of torch, each (default: %(default)s)")
    add("--no-peer", action="store_true", help="without transformers")
    add("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
