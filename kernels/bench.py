"""Time every op against its floor and the best library call: `python -m kernels.bench`.

On a GPU: bf16, microseconds, replays of a CUDA graph that rotates over buffers larger than the L2
cache. The floor is the larger of bytes over the card's measured read bandwidth and operations over its
measured matrix rate. On a CPU: the default model's shapes, milliseconds per decode step of 30 layers,
the best of several runs, since other processes share the cores.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

import kernels

L2_BYTES = 60 << 20
Calls = list[Callable[[], Any]]


@dataclass(frozen=True)
class Shape:
    """The widths of a Llama model."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @property
    def products(self) -> dict[str, tuple[int, int, int]]:
        """name -> (out_features, in_features, times per step)."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        return {
            "qkv": (qkv, self.hidden, self.layers),
            "o": (self.hidden, self.heads * self.head_dim, self.layers),
            "gate_up": (2 * self.intermediate, self.hidden, self.layers),
            "down": (self.hidden, self.intermediate, self.layers),
            "head": (self.vocab, self.hidden, 1),
        }


SMOLLM2 = Shape("SmolLM2-135M", 576, 30, 9, 3, 64, 1536, 49152)
LLAMA_1B = Shape("Llama-3.2-1B", 2048, 16, 32, 8, 64, 8192, 128256)
LLAMA_8B = Shape("Llama-3.1-8B", 4096, 32, 32, 8, 128, 14336, 128256)


def paged(shape: Shape, rows: int, context: int, dtype: torch.dtype, device: str) -> list[Any]:
    """[k_pool, v_pool, block_tables, rows, context_lens] with shuffled blocks of 16."""
    per_row = -(-context // 16)
    blocks = rows * per_row + 1
    pools = torch.randn(2, blocks, 16, shape.kv_heads, shape.head_dim, device=device).to(dtype)
    tables = (torch.randperm(blocks - 1, device=device) + 1).int().view(rows, per_row)
    order = torch.randperm(rows, device=device).int()
    lens = torch.full((rows,), context, dtype=torch.int32, device=device)
    return [pools[0], pools[1], tables, order, lens]


# On a GPU.


def graph_us(calls: Calls) -> float:
    """Median microseconds of one call, the calls in turn inside one CUDA graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    repeats = max(1, 24 // len(calls))
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    times = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2] * 1e3 / (repeats * len(calls))


def ceilings() -> tuple[float, float]:
    """(bytes per microsecond read, operations per microsecond), measured."""
    data = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    read = 2 * data.numel() / graph_us([lambda: data.sum()])
    copy = 4 * data.numel() / graph_us([lambda: data.clone()])
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return max(read, copy), 2 * 8192**3 / graph_us([lambda: a @ b])


def copies(size: int) -> range:
    return range(min(max(2, math.ceil(3 * L2_BYTES / max(size, 1))), 24))


class GpuBench:
    """Rows of the table, printed as they are measured."""

    def __init__(self) -> None:
        self.ops = kernels.ops("cuda")
        self.bandwidth, self.rate = ceilings()
        print(f"{torch.cuda.get_device_name()}: read {self.bandwidth / 1e6:.2f} TB/s, "
              f"bf16 {self.rate / 1e6:.0f} TFLOP/s")  # fmt: skip
        print(f"{'op':44} {'ours us':>9} {'floor':>8} {'floor/ours':>10} {'library':>9}")

    def row(self, name: str, ours: Calls, library: Calls, size: float, work: float = 0) -> None:
        time_us, floor = graph_us(ours), max(size / self.bandwidth, work / self.rate)
        other = f"{graph_us(library):9.1f}" if library else f"{'-':>9}"
        print(f"{name:44} {time_us:9.1f} {floor:8.1f} {floor / time_us:10.0%} {other}", flush=True)

    def products(self, shape: Shape) -> None:
        total = [0.0, 0.0]
        for name, (n, k, times) in shape.products.items():
            size = 2 * n * k
            weights = [_randn(n, k) for _ in copies(size)]
            packed = [self.ops.pack_weight(w) for w in weights]
            x = _randn(1, k)
            ours = [lambda w=w: self.ops.linear(x, w) for w in packed]
            library = [lambda w=w: linear(x, w) for w in weights]
            self.row(f"{shape.name} linear {name} M=1", ours, library, size)
            total[0] += graph_us(ours) * times
            total[1] += graph_us(library) * times
        print(f"{shape.name} all products of a step, M=1: ours {total[0] / 1e3:.3f} ms, "
              f"library {total[1] / 1e3:.3f} ms")  # fmt: skip

    def decode(self, shape: Shape, rows: int, context: int) -> None:
        size = 4 * rows * context * shape.kv_heads * shape.head_dim
        scale = shape.head_dim**-0.5
        q = _randn(rows, shape.heads, shape.head_dim)
        cases = [paged(shape, rows, context, q.dtype, "cuda") for _ in copies(size)]
        ours = [
            lambda c=c: self.ops.paged_attention_decode(q, *c, scale, max_context_len=context)
            for c in cases
        ]
        dense = [_randn(2, rows, shape.kv_heads, context, shape.head_dim) for _ in cases]
        library = [
            lambda kv=kv: scaled_dot_product_attention(q[:, :, None], *kv, enable_gqa=True)
            for kv in dense
        ]
        self.row(f"decode d={shape.head_dim} rows={rows} context={context}", ours, library, size)

    def prefill(self, shape: Shape, rows: int, length: int) -> None:
        q = _randn(rows * length, shape.heads, shape.head_dim)
        case = paged(shape, rows, length, q.dtype, "cuda")
        starts = (torch.arange(rows + 1, device="cuda") * length).int()
        scale = shape.head_dim**-0.5
        ours = (
            lambda: self.ops.paged_attention_prefill(  # noqa: E731
                q, *case[:4], starts, case[4], scale, length, max_context_len=length
            )
        )
        dense = _randn(2, rows, shape.kv_heads, length, shape.head_dim)
        heads = q.view(rows, length, shape.heads, shape.head_dim).transpose(1, 2)
        library = lambda: scaled_dot_product_attention(  # noqa: E731
            heads, *dense, is_causal=True, enable_gqa=True
        )
        work = 2 * rows * shape.heads * shape.head_dim * length**2
        size = 4 * q.numel() + 4 * rows * length * shape.kv_heads * shape.head_dim
        self.row(f"prefill d={shape.head_dim} rows={rows} length={length}", [ours], [library],
                 size, work)  # fmt: skip

    def small(self, shape: Shape, tokens: int) -> None:
        ops, hidden, width = self.ops, shape.hidden, shape.intermediate
        x, residual, weight = _randn(tokens, hidden), _randn(tokens, hidden), _randn(hidden)
        self.row(
            f"{shape.name} add_rms_norm tokens={tokens}",
            [lambda: ops.add_rms_norm(x, residual, weight, 1e-5)],
            [lambda: rms_norm(x + residual, (hidden,), weight, 1e-5)], 8 * x.numel(),
        )  # fmt: skip
        gate_up = _randn(tokens, 2 * width)
        self.row(
            f"{shape.name} silu_and_mul tokens={tokens}", [lambda: ops.silu_and_mul(gate_up)],
            [lambda: silu(gate_up[:, :width]) * gate_up[:, width:]], 3 * gate_up.numel(),
        )  # fmt: skip
        qkv = _randn(tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        pools = paged(shape, 1, tokens + 64, qkv.dtype, "cuda")[:2]
        cos_sin = torch.randn(tokens, shape.head_dim, device="cuda")
        positions = torch.arange(tokens, dtype=torch.int32, device="cuda")
        slots = torch.randperm(tokens + 64, device="cuda")[:tokens]
        self.row(
            f"{shape.name} rope_and_write_kv tokens={tokens}",
            [lambda: ops.rope_and_write_kv(qkv, positions, cos_sin, slots, *pools, shape.heads)],
            [], 4 * qkv.numel(),
        )  # fmt: skip

    def sample(self, rows: int, vocab: int) -> None:
        logits = [_randn(rows, vocab) for _ in copies(2 * rows * vocab)]
        columns = (
            torch.ones(rows, device="cuda"), torch.arange(rows, device="cuda"),
            torch.arange(rows, dtype=torch.int32, device="cuda"),
        )  # fmt: skip
        self.row(
            f"sample rows={rows} vocab={vocab}",
            [lambda x=x: self.ops.sample(x, *columns) for x in logits],
            [lambda x=x: x.argmax(-1) for x in logits], 2 * rows * vocab,
        )  # fmt: skip


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def bench_gpu() -> None:
    bench = GpuBench()
    for shape in (LLAMA_1B, LLAMA_8B):
        bench.products(shape)
    for shape in (LLAMA_1B, LLAMA_8B):
        for rows, context in ((1, 640), (1, 8192), (32, 640), (64, 4096), (256, 640)):
            bench.decode(shape, rows, context)
        for rows, length in ((1, 512), (1, 8192), (16, 2048)):
            bench.prefill(shape, rows, length)
    for tokens in (1, 64, 8192):
        bench.small(LLAMA_1B, tokens)
    for rows in (1, 64, 256):
        bench.sample(rows, LLAMA_1B.vocab)


# On a CPU.


def best_ms(call: Callable[[], Any], seconds: float = 0.4) -> float:
    call()
    best, until = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def bench_cpu() -> None:
    print(f"{SMOLLM2.name}, {torch.get_num_threads()} threads; ms per decode step at context 192")
    print(f"{'dtype':5} {'rows':>4} {'linear':>7} {'torch':>7} {'attention':>9} {'norms':>6} "
          f"{'rope':>6} {'silu':>6} {'sample':>6} {'sum':>7}")  # fmt: skip
    for dtype in (torch.bfloat16, torch.float32):
        for rows in (1, 8, 32):
            times = cpu_step(SMOLLM2, dtype, rows, 192)
            ours = sum(times) - times[1]
            print(f"{'bf16' if dtype == torch.bfloat16 else 'fp32':5} {rows:4} "
                  f"{times[0]:7.2f} {times[1]:7.2f} {times[2]:9.2f} {times[3]:6.2f} "
                  f"{times[4]:6.2f} {times[5]:6.2f} {times[6]:6.2f} {ours:7.2f}", flush=True)  # fmt: skip
        print(f"prefill of 512, attention of all layers: {cpu_prefill(SMOLLM2, dtype, 512):.1f} ms")


def cpu_step(shape: Shape, dtype: torch.dtype, rows: int, context: int) -> list[float]:
    """ms of a step's products, torch's own products, attention, norms, rope, silu, sampling."""
    ops, layers = kernels.ops("cpu"), shape.layers
    ours, library = [], []
    for n, k, times in shape.products.values():
        x = torch.randn(rows, k).to(dtype)
        for _ in range(times):
            weight = torch.randn(n, k).to(dtype)
            packed = ops.pack_weight(weight)
            ours.append(lambda x=x, w=packed: ops.linear(x, w))
            library.append(lambda x=x, w=weight: linear(x, w))
    times = [best_ms(lambda: [call() for call in calls], 1.0) for calls in (ours, library)]
    q = torch.randn(rows, shape.heads, shape.head_dim).to(dtype)
    pools = [paged(shape, rows, context, dtype, "cpu") for _ in range(layers)]
    tables = pools[0][2:]
    scale = shape.head_dim**-0.5

    def attention() -> None:
        plan = ops.plan_decode(pools[0][0], *tables)
        for k_pool, v_pool, *_ in pools:
            ops.paged_attention_decode(
                q, k_pool, v_pool, *tables, scale, max_context_len=context, plan=plan
            )

    hidden = torch.randn(rows, shape.hidden).to(dtype)
    weight = torch.randn(shape.hidden).to(dtype)
    qkv = torch.randn(rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim).to(dtype)
    gate_up = torch.randn(rows, 2 * shape.intermediate).to(dtype)
    positions, cos_sin = torch.full((rows,), context).int(), torch.randn(8192, shape.head_dim)
    slots = torch.randperm(rows * context)[:rows]
    logits = torch.randn(rows, shape.vocab).to(dtype) * 3
    columns = torch.full((rows,), 0.8), torch.arange(rows), positions
    each = (
        lambda: ops.add_rms_norm(hidden, hidden, weight, 1e-5),
        lambda: ops.rope_and_write_kv(qkv, positions, cos_sin, slots, *pools[0][:2], shape.heads),
        lambda: ops.silu_and_mul(gate_up),
    )
    counts = (2 * layers + 1, layers, layers)
    times += [best_ms(attention)]
    times += [best_ms(call) * count for call, count in zip(each, counts, strict=True)]
    return [*times, best_ms(lambda: ops.sample(logits, *columns))]


def cpu_prefill(shape: Shape, dtype: torch.dtype, length: int) -> float:
    ops = kernels.ops("cpu")
    case = paged(shape, 1, length, dtype, "cpu")
    q = torch.randn(length, shape.heads, shape.head_dim).to(dtype)
    starts = torch.tensor([0, length], dtype=torch.int32)
    plan = ops.plan_prefill(case[0], *case[2:4], starts, case[4])
    return shape.layers * best_ms(
        lambda: ops.paged_attention_prefill(
            q, *case[:4], starts, case[4], 0.125, length, max_context_len=length, plan=plan
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="what to time (auto)"
    )
    device = parser.parse_args().device
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        bench_gpu()
    else:
        bench_cpu()


if __name__ == "__main__":
    main()
