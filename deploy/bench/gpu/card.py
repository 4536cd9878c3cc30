"""`python -m deploy.bench.gpu.card --weights DIR`: the card alone, in a process of its own, which
leaves its memory free again.

Writes the folders of random weights that are not there yet, DIR/SHAPE, and prints a line of JSON:
the rates that floors are made of, the card's state, and decode attention's times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from deploy.bench.floor import Rates, measure_rates
from deploy.model.random_llama import SHAPES, write_random_llama

# Head_dim, rows and context of the decode attention that is timed.
ATTENTION = (
    *((64, 64, 4096), (128, 64, 4096), (64, 256, 640), (128, 256, 640)),
    *((64, 1, 640), (64, 1, 8192)),
)
_READ_BYTES = 1 << 32  # many times any cache
_MATMUL_SIZE = 8192
_TRIES = 10


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    for shape in args.shapes:
        if not (args.weights / shape / "config.json").exists():
            config = SHAPES[shape]
            write_random_llama(args.weights / shape, config, device=args.device, words=True)
    on_card = args.device == "cuda"
    rates = card_rates() if on_card else measure_rates(torch.get_num_threads())
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if on_card else "cpu",
        "state": _state() if on_card else "",
        "rates": asdict(rates),
        "attention": [],
        "attention_failure": "",
    }
    if args.attention and on_card:
        try:
            found["attention"] = time_attention()
        except Exception:  # a kernel's: the rest is of use without it
            found["attention_failure"] = traceback.format_exc()
    print(json.dumps(found), flush=True)
    return 0


def card_rates() -> Rates:
    """The best of a few tries each; of reading, the quickest of three ways."""
    from kernels import ops

    table = ops("cuda")
    data = torch.randn(_READ_BYTES // 4, device="cuda")
    x = torch.randn(1, _MATMUL_SIZE, device="cuda", dtype=torch.bfloat16)
    weight = table.pack_weight(data.bfloat16().view(-1, _MATMUL_SIZE))
    seconds_a_byte = min(
        _best_seconds(data.sum) / _READ_BYTES,
        _best_seconds(data.clone) / (2 * _READ_BYTES),
        _best_seconds(lambda: table.linear(x, weight)) / (_READ_BYTES // 2),
    )
    a, b = (
        torch.randn(_MATMUL_SIZE, _MATMUL_SIZE, device="cuda", dtype=torch.bfloat16)
        for _ in range(2)
    )
    return Rates(1 / seconds_a_byte, 2 * _MATMUL_SIZE**3 / _best_seconds(lambda: a @ b))


def _best_seconds(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_TRIES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best


def time_attention() -> list[dict[str, float]]:
    """Microseconds of each of ATTENTION, beside those of torch over dense K/V."""
    from kernels.bench.gpu import GpuBench
    from kernels.bench.shape import LLAMA_1B, LLAMA_8B

    shapes = {shape.head_dim: shape for shape in (LLAMA_1B, LLAMA_8B)}
    found = []
    # Its table goes to people; this output is one line.
    with contextlib.redirect_stdout(sys.stderr):
        bench = GpuBench()
        for head_dim, rows, context in ATTENTION:
            shape = shapes[head_dim]
            ours, library = bench.decode(shape, rows, context)
            size = 4 * rows * context * shape.kv_heads * head_dim
            found.append(
                {
                    "head_dim": head_dim,
                    "rows": rows,
                    "context": context,
                    "us": ours,
                    "library_us": library,
                    "bytes": size,
                }
            )
    return found


def _state() -> str:
    """Clocks and driver, as nvidia-smi tells them; empty without it."""
    fields = "clocks.sm,clocks.mem,power.limit,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()[0] if done.returncode == 0 else ""
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.gpu.card",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--weights", type=Path, required=True, metavar="DIR")
    add("--shapes", nargs="*", choices=sorted(SHAPES), default=[], help="default: none")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    add("--attention", action="store_true", help="time decode attention")
    return parser


if __name__ == "__main__":
    sys.exit(main())
