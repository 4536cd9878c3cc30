"""bf16 on a GPU, in microseconds: replays of a CUDA graph that rotates over buffers larger than the
L2 cache. The floor is the larger of bytes over the card's measured bandwidth and operations over
its measured matrix rate."""

import math

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

import kernels
from kernels.bench.shape import LLAMA_1B, LLAMA_8B, Calls, Shape, paged

L2_BYTES = 60 << 20


def captured(calls: Calls) -> tuple[torch.cuda.CUDAGraph, int]:
    """A CUDA graph of the calls in turn, several times over, and how many calls are in it."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    repeats = max(1, 24 // len(calls))
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    return graph, repeats * len(calls)


def graph_us(calls: Calls) -> float:
    """Median microseconds of one call, the calls in turn inside one CUDA graph."""
    graph, count = captured(calls)
    times = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2] * 1e3 / count


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

    def row(
        self, name: str, ours: Calls, library: Calls, size: float, work: float = 0
    ) -> tuple[float, float]:
        """Microseconds of ours and of the library's; 0 for no library call."""
        time_us, floor = graph_us(ours), max(size / self.bandwidth, work / self.rate)
        other = graph_us(library) if library else 0.0
        print(f"{name:44} {time_us:9.1f} {floor:8.1f} {floor / time_us:10.0%} "
              f"{f'{other:.1f}' if library else '-':>9}", flush=True)  # fmt: skip
        return time_us, other

    def products(self, shape: Shape) -> None:
        total = [0.0, 0.0]
        for name, (n, k, times) in shape.products.items():
            size = 2 * n * k
            weights = [randn(n, k) for _ in copies(size)]
            packed = [self.ops.pack_weight(w) for w in weights]
            x = randn(1, k)
            ours = [lambda x=x, w=w: self.ops.linear(x, w) for w in packed]
            library = [lambda x=x, w=w: linear(x, w) for w in weights]
            taken = self.row(f"{shape.name} linear {name} M=1", ours, library, size)
            total = [t + one * times for t, one in zip(total, taken, strict=True)]
        print(f"{shape.name} all products of a step, M=1: ours {total[0] / 1e3:.3f} ms, "
              f"library {total[1] / 1e3:.3f} ms")  # fmt: skip

    def decode(self, shape: Shape, rows: int, context: int) -> tuple[float, float]:
        size = 4 * rows * context * shape.kv_heads * shape.head_dim
        scale = shape.head_dim**-0.5
        q = randn(rows, shape.heads, shape.head_dim)
        cases = [paged(shape, rows, context, q.dtype, "cuda") for _ in copies(size)]
        # A step makes its plan once for all layers.
        plan = self.ops.plan_decode(cases[0][0], *cases[0][2:], rows * context)
        ours = [
            lambda c=c: self.ops.paged_attention_decode(
                q, *c, scale, max_context_len=context, plan=plan
            )
            for c in cases
        ]
        dense = [randn(2, rows, shape.kv_heads, context, shape.head_dim) for _ in cases]
        library = [
            lambda kv=kv: scaled_dot_product_attention(q[:, :, None], *kv, enable_gqa=True)
            for kv in dense
        ]
        name = f"decode d={shape.head_dim} rows={rows} context={context}"
        return self.row(name, ours, library, size)

    def prefill(self, shape: Shape, rows: int, length: int) -> None:
        q = randn(rows * length, shape.heads, shape.head_dim)
        case = paged(shape, rows, length, q.dtype, "cuda")
        starts = (torch.arange(rows + 1, device="cuda") * length).int()
        scale = shape.head_dim**-0.5
        dense = randn(2, rows, shape.kv_heads, length, shape.head_dim)
        heads = q.view(rows, length, shape.heads, shape.head_dim).transpose(1, 2)
        plan = self.ops.plan_prefill(
            case[0], *case[2:4], starts, case[4], shape.heads, rows * length
        )
        ours: Calls = [
            lambda: self.ops.paged_attention_prefill(
                q, *case[:4], starts, case[4], scale, max_context_len=length, plan=plan
            )
        ]
        library: Calls = [
            lambda: scaled_dot_product_attention(heads, *dense, is_causal=True, enable_gqa=True)
        ]
        work = 2 * rows * shape.heads * shape.head_dim * length**2
        size = 4 * q.numel() + 4 * rows * length * shape.kv_heads * shape.head_dim
        name = f"prefill d={shape.head_dim} rows={rows} length={length}"
        self.row(name, ours, library, size, work)

    def small(self, shape: Shape, tokens: int) -> None:
        ops, hidden, width = self.ops, shape.hidden, shape.intermediate
        x, weight = randn(tokens, hidden), randn(hidden)
        self.row(
            f"{shape.name} rms_norm tokens={tokens}",
            [lambda: ops.rms_norm(x, weight, 1e-5)],
            [lambda: rms_norm(x, (hidden,), weight, 1e-5)], 4 * x.numel(),
        )  # fmt: skip
        gate_up = randn(tokens, 2 * width)
        self.row(
            f"{shape.name} silu_and_mul tokens={tokens}", [lambda: ops.silu_and_mul(gate_up)],
            [lambda: silu(gate_up[:, :width]) * gate_up[:, width:]], 3 * gate_up.numel(),
        )  # fmt: skip
        qkv = randn(tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
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
        logits = [randn(rows, vocab) for _ in copies(2 * rows * vocab)]
        order = torch.arange(rows, device="cuda")
        tokens = torch.zeros((rows, rows), dtype=torch.int32, device="cuda")
        columns = (order.int(), order.int(), torch.ones(rows, device="cuda"), order, tokens)
        self.row(
            f"sample rows={rows} vocab={vocab}",
            [lambda x=x: self.ops.sample(x, *columns) for x in logits],
            [lambda x=x: x.argmax(-1) for x in logits], 2 * rows * vocab,
        )  # fmt: skip

    def extras(self, rows: int, vocab: int, context: int) -> None:
        """Penalties of every row, and 20 log-probabilities."""
        logits = [randn(rows, vocab) for _ in copies(2 * rows * vocab)]
        lines = torch.arange(rows, device="cuda")
        order, sampled = lines.int(), torch.zeros_like(lines).int()
        tokens = torch.randint(vocab, (rows, context), dtype=torch.int32, device="cuda")
        positions = torch.full_like(order, context)
        settings = (tokens, positions // 2, torch.full((rows, 3), 1.1, device="cuda"))
        self.row(
            f"penalize rows={rows} vocab={vocab} context={context}",
            [lambda x=x: self.ops.penalize(x, lines, order, positions, *settings,
                                           max_position=context) for x in logits],
            [], (2 + 4 * 3) * rows * vocab,
        )  # fmt: skip
        self.row(
            f"top_logprobs rows={rows} vocab={vocab}",
            [lambda x=x: self.ops.top_logprobs(x, lines, sampled, 20) for x in logits],
            [lambda x=x: x.topk(20) for x in logits], 2 * rows * vocab,
        )  # fmt: skip


def randn(*shape: int) -> torch.Tensor:
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
        bench.extras(rows, LLAMA_1B.vocab, 640)
