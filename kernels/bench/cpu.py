"""The default model's decode step on a CPU, in milliseconds: the best time of each call, since
other processes share the cores."""

import math
import time

import torch
from torch.nn.functional import linear

import kernels
from kernels.bench.shape import SMOLLM2, Calls, Shape, paged


def best_ms(calls: Calls, seconds: float = 0.5) -> float:
    """The sum over the calls, made in turn, of each one's best time: others' bursts fall out."""
    best = [math.inf] * len(calls)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or math.inf in best:
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return sum(best) * 1e3


def bench_cpu() -> None:
    print(f"{SMOLLM2.name}, {torch.get_num_threads()} threads; ms per decode step at context 192")
    names = ("linear", "torch's", "attention", "norms", "rope", "silu", "sample", "sum")
    print(f"{'dtype':9}{'rows':>4}" + "".join(f"{name:>10}" for name in names))
    for dtype in (torch.bfloat16, torch.float32):
        for rows in (1, 8, 32):
            times = cpu_step(SMOLLM2, dtype, rows, 192)
            ours = sum(times) - times[1]
            columns = "".join(f"{value:10.2f}" for value in (*times, ours))
            print(f"{str(dtype).removeprefix('torch.'):9}{rows:4}{columns}", flush=True)
        attention, products = cpu_prefill(SMOLLM2, dtype, 512)
        print(
            f"prefill of 512: attention {attention:.1f} ms, products {products:.1f} ms", flush=True
        )


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
    times = [best_ms(calls, 2.0) for calls in (ours, library)]
    q = torch.randn(rows, shape.heads, shape.head_dim).to(dtype)
    pools = [paged(shape, rows, context, dtype, "cpu")[:2] for _ in range(layers)]
    tables = paged(shape, rows, context, dtype, "cpu")[2:]
    plan = ops.plan_decode(pools[0][0], *tables)
    attention = [lambda: ops.plan_decode(pools[0][0], *tables)] + [
        lambda kv=kv: ops.paged_attention_decode(
            q, *kv, *tables, shape.head_dim**-0.5, max_context_len=context, plan=plan
        )
        for kv in pools
    ]
    hidden = torch.randn(rows, shape.hidden).to(dtype)
    weight = torch.randn(shape.hidden).to(dtype)
    qkv = torch.randn(rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim).to(dtype)
    gate_up = torch.randn(rows, 2 * shape.intermediate).to(dtype)
    positions, cos_sin = torch.full((rows,), context).int(), torch.randn(8192, shape.head_dim)
    slots = torch.randperm(rows * context)[:rows]
    logits = torch.randn(rows, shape.vocab).to(dtype) * 3
    order = torch.arange(rows)
    tokens = torch.zeros((rows, context + 1), dtype=torch.int32)
    columns = order.int(), positions, torch.full((rows,), 0.8), order, tokens
    parts = (
        attention,
        [lambda: ops.rms_norm(hidden, weight, 1e-5)] * (2 * layers + 1),
        [
            lambda kv=kv: ops.rope_and_write_kv(qkv, positions, cos_sin, slots, *kv, shape.heads)
            for kv in pools
        ],
        [lambda: ops.silu_and_mul(gate_up)] * layers,
        [lambda: ops.sample(logits, *columns)],
    )
    return times + [best_ms(calls) for calls in parts]


def cpu_prefill(shape: Shape, dtype: torch.dtype, length: int) -> tuple[float, float]:
    """ms of attention, and of the products but the head's, in a prefill of `length` tokens."""
    ops = kernels.ops("cpu")
    case = paged(shape, 1, length, dtype, "cpu")
    q = torch.randn(length, shape.heads, shape.head_dim).to(dtype)
    starts = torch.tensor([0, length], dtype=torch.int32)
    plan = ops.plan_prefill(case[0], *case[2:4], starts, case[4])
    attention = [
        lambda: ops.paged_attention_prefill(
            q, *case[:4], starts, case[4], 0.125, max_context_len=length, plan=plan
        )
    ] * shape.layers
    products = []
    for n, k, times in shape.products.values():
        if times > 1:
            x, weight = (
                torch.randn(length, k).to(dtype),
                ops.pack_weight(torch.randn(n, k).to(dtype)),
            )
            products += [lambda x=x, w=weight: ops.linear(x, w)] * times
    return best_ms(attention), best_ms(products)
