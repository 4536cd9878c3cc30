"""What a card draws while it does one thing for seconds on end.

A card slows down to keep to its power limit, so what binds large batches is energy. Each row is
work that goes on until power and clock have settled. The last lines tell what a decode step would
take at the limit if its bytes cost what a plain sum over memory costs and its operations what a
large matrix product costs, one after the other.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

import torch
from torch.nn.functional import linear

from kernels import ops
from kernels.bench.gpu import captured, copies, randn
from kernels.bench.shape import LLAMA_1B, LLAMA_8B, Calls, Shape, paged

_SECONDS, _SETTLED = 2.5, 1.5  # of a row; of these the last
_COMMAND = (
    "nvidia-smi", "--query-gpu=power.draw.instant,clocks.sm,power.limit",
    "--format=csv,noheader,nounits", "--id=0", "--loop-ms=50",
)  # fmt: skip
ROWS, CONTEXT = 256, 640
_MATMUL = 8192


@dataclass(frozen=True, slots=True)
class Sample:
    """`at`: seconds, of the monotonic clock."""

    at: float
    watts: float
    mhz: float
    limit: float

    @staticmethod
    def parse(line: str, at: float) -> Sample:
        """Of nvidia-smi's line of three numbers."""
        watts, mhz, limit = map(float, line.split(","))
        return Sample(at, watts, mhz, limit)


@dataclass
class PowerMeter:
    """Samples of the first card's power and clock, while it is entered."""

    command: tuple[str, ...] = _COMMAND
    samples: list[Sample] = field(default_factory=list)

    def __enter__(self) -> PowerMeter:
        self._process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.samples.append(Sample.parse(line, time.monotonic()))

    def since(self, moment: float) -> Sample:
        """The medians of what was seen since then. Raises RuntimeError if that is nothing."""
        seen = [sample for sample in self.samples if sample.at >= moment]
        if not seen:
            raise RuntimeError(f"{self.command[0]} told no power")
        fields = ([getattr(s, name) for s in seen] for name in ("watts", "mhz", "limit"))
        return Sample(moment, *map(statistics.median, fields))


def sustained(meter: PowerMeter, name: str, calls: Calls) -> tuple[float, float]:
    """Prints a row; returns (joules of a call, watts of the limit). The calls take turns."""
    graph, count = captured(calls)
    start, spans = time.monotonic(), []
    while (now := time.monotonic()) < start + _SECONDS:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        spans.append((now, before, after))
        if len(spans) > 2:  # so that there is always one waiting
            spans[-3][2].synchronize()
    torch.cuda.synchronize()
    settled = start + _SECONDS - _SETTLED
    seconds = statistics.median(
        before.elapsed_time(after) / 1e3 / count for at, before, after in spans if at >= settled
    )
    seen = meter.since(settled)
    print(f"{name:44} {1e6 * seconds:9.1f} {seen.watts:7.0f} {seen.mhz:7.0f} "
          f"{1e3 * seconds * seen.watts:9.2f}", flush=True)  # fmt: skip
    return seconds * seen.watts, seen.limit


def bench_power() -> None:
    """Raises FileNotFoundError without nvidia-smi."""
    with torch.inference_mode(), PowerMeter() as meter:
        print(f"{torch.cuda.get_device_name()}\n{'for seconds on end':44} {'us':>9} {'W':>7} "
              f"{'MHz':>7} {'mJ':>9}")  # fmt: skip
        data = torch.randn(1 << 30, device="cuda")
        reading, limit = sustained(meter, "read 4 GiB", [data.sum])
        byte = reading / (4 * data.numel())
        a, b = (randn(_MATMUL, _MATMUL) for _ in range(2))
        product, _ = sustained(
            meter, f"multiply {_MATMUL} x {_MATMUL} x {_MATMUL}", [lambda: a @ b]
        )
        operation = product / (2 * _MATMUL**3)
        for shape in (LLAMA_1B, LLAMA_8B):
            sustained(meter, f"{shape.name} attention of a layer", _attention(shape))
            sustained(meter, f"{shape.name} products of a layer", _products(shape))
        for shape in (LLAMA_1B, LLAMA_8B):
            weights = sum(n * k * times for n, k, times in shape.products.values())
            kv = 4 * ROWS * CONTEXT * shape.kv_heads * shape.head_dim * shape.layers
            read, multiplied = byte * (2 * weights + kv), operation * 2 * ROWS * weights
            print(f"{shape.name} step of {ROWS} rows at context {CONTEXT}: {read:.1f} J to read, "
                  f"{multiplied:.1f} J to multiply, {1e3 * (read + multiplied) / limit:.1f} ms "
                  f"at {limit:.0f} W")  # fmt: skip


def _attention(shape: Shape) -> Calls:
    table, scale = ops("cuda"), shape.head_dim**-0.5
    q = randn(ROWS, shape.heads, shape.head_dim)
    size = 4 * ROWS * CONTEXT * shape.kv_heads * shape.head_dim
    cases = [paged(shape, ROWS, CONTEXT, q.dtype, "cuda") for _ in copies(size)]
    plan = table.plan_decode(cases[0][0], *cases[0][2:], ROWS * CONTEXT)
    return [
        lambda c=c: table.paged_attention_decode(q, *c, scale, max_context_len=CONTEXT, plan=plan)
        for c in cases
    ]


def _products(shape: Shape) -> Calls:
    """Each call all of a layer's."""
    sizes = [(n, k) for n, k, times in shape.products.values() if times == shape.layers]
    layers = [[randn(n, k) for n, k in sizes] for _ in range(4)]
    inputs = {k: randn(ROWS, k) for _, k in sizes}
    return [
        lambda layer=layer: [linear(inputs[weight.shape[1]], weight) for weight in layer]
        for layer in layers
    ]
