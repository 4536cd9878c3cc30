"""Compile every Triton kernel for sm_90 as its launcher launches it; run by
test_compiled_kernels.py in a process of its own.

The launchers are called with their kernels' `run` replaced, so that shapes, tiles and warps are
theirs. A launch with a trait that its kernel was not yet compiled with is compiled to the end; the
others, of other widths or with traits in other company, until their layouts and their shared memory
are decided. Prints one line per launch: name, type, head_dim if it has one, bytes of shared memory;
and one per head_dim of which decode attention, or its merging, takes several heads to a program,
once it is sure that these add as one alone does. Needs no GPU.
"""

import gc
import importlib
import pkgutil
import re
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton
from triton._C.libtriton import ir, nvidia, passes
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptx_version_from_options
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

import kernels
from kernels import invariant_ops, triton_ops
from kernels import skinny_product as skinny
from kernels.add_bias import add_bias
from kernels.attention_sizes import HOPPER_PACK_FROM, MERGE_SEVERAL_FROM, PACK_FROM
from kernels.decode_plan import plan_decode
from kernels.gemv import gemv
from kernels.hopper_attention_decode import hopper_decode
from kernels.invariant_product import invariant_product
from kernels.launch import next_power_of_2
from kernels.linear import Unsummed
from kernels.pdl import WAIT_AND_LET
from kernels.sample import FEW_LINES
from kernels.shapes import TRITON_HEAD_DIMS
from kernels.skinny_product import skinny_product
from tests.kernels.sum_order import SumOrder, sum_order

TARGET = GPUTarget("cuda", 90, 32)
BACKEND = make_backend(TARGET)
SHARED_MEMORY = 227 * 1024
OPTIONS = ("num_warps", "num_stages", "launch_pdl", "maxnreg")
TYPES = {
    torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64",
    torch.bool: "i1", int: "i32", float: "fp32",
}  # fmt: skip
# By these a kernel becomes other instructions, as by a flag; by other keywords it has other sizes.
TRAITS = ("num_warps", "BLOCK_M", "TAKEN", "STRETCHES", "RUN")
HEADS, KV_HEADS = 32, 8
# A thread's own sums, and those with other threads.
MERGED_SUMS = re.compile(r"\b(add\.f32|shfl\.sync\.bfly\.b32)\b")
HOPPER_SUMS = re.compile(
    r"\b(wgmma\.mma_async\.\S*?k16|ex2\S+|shfl\.sync\.bfly\.b32|(?:fma\.rn|add|max)\.f32)\b"
)


class Compiled(NamedTuple):
    ptx: str | None  # unless it was compiled to the end
    shared: int  # bytes


def kernels_of_package() -> dict[str, triton.JITFunction]:
    folder = Path(kernels.__path__[0])
    names = [
        name
        for _, name, is_package in pkgutil.iter_modules(kernels.__path__)
        if not is_package
        and re.search(r"@(triton|gluon)\.jit", (folder / f"{name}.py").read_text())
    ]
    modules = [importlib.import_module(f"kernels.{name}") for name in names]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_kernel") and isinstance(value, triton.JITFunction)
    }


def launch_attention(ops: ModuleType, head_dim: int, dtype: torch.dtype) -> None:
    """A context of two splits, so that their merging is launched too; one decode, so many that a
    program takes several heads, and so many that one merges several."""
    pool = torch.empty(1, 16, KV_HEADS, head_dim, dtype=dtype)
    table = torch.zeros(1, 32, dtype=torch.int32)
    context = {"scale": 0.125, "max_context_len": 512}
    several = [MERGE_SEVERAL_FROM] if head_dim == 64 and dtype == torch.bfloat16 else []
    for sequences in (1, PACK_FROM, *several):
        q = torch.empty(sequences, HEADS, head_dim, dtype=dtype)
        rows = torch.zeros(sequences, dtype=torch.int32)
        ops.paged_attention_decode(q, pool, pool, table, rows, rows, **context)
    starts = torch.zeros(2, dtype=torch.int32)
    ops.paged_attention_prefill(q[:1], pool, pool, table, rows[:1], starts, rows[:1], **context)


def launch_hopper_attention(head_dim: int) -> None:
    """One K/V head to a program, and several; one split, and a run of several."""
    pool = torch.empty(1, 16, KV_HEADS, head_dim, dtype=torch.bfloat16)
    table = torch.zeros(1, 32, dtype=torch.int32)
    stats = torch.empty(1, HEADS, 2)
    for sequences in (1, HOPPER_PACK_FROM, MERGE_SEVERAL_FROM):
        q = torch.empty(sequences, HEADS, head_dim, dtype=torch.bfloat16)
        rows = torch.zeros(sequences, dtype=torch.int32)
        plan = plan_decode(pool, table, rows, rows, 512)
        hopper_decode(q, pool, pool, table, plan, q, q.float(), stats, 0.125, early=True)


def launch_rope(head_dim: int, dtype: torch.dtype) -> None:
    qkv = torch.empty(1, (HEADS + 2 * KV_HEADS) * head_dim, dtype=dtype)
    pool = torch.empty(1, 16, KV_HEADS, head_dim, dtype=dtype)
    cos_sin = torch.empty(1, head_dim)
    positions, slots = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    triton_ops.rope_and_write_kv(qkv, positions, cos_sin, slots, pool, pool, HEADS)


def launch_others(dtype: torch.dtype) -> None:
    for width in (576, 4096):
        x, weight = torch.empty(1, width, dtype=dtype), torch.empty(width, dtype=dtype)
        triton_ops.rms_norm(x, weight, 1e-5)
    triton_ops.silu_and_mul(torch.empty(1, 2 * 8192, dtype=dtype))
    add_bias(torch.empty(2, 64, dtype=dtype), torch.empty(64, dtype=dtype))
    for k, bias in ((576, torch.empty(64, dtype=dtype)), (2048, None), (14336, None)):
        x, weight = torch.empty(1, k, dtype=dtype), torch.empty(64, k, dtype=dtype)
        packed, norm = triton_ops.pack_weight(weight), (torch.empty(k, dtype=dtype), 1e-5)
        gemv(x, packed, bias, norm=norm)
        gemv(x, packed, bias, norm=norm, gated=True)
        gemv(x, packed, bias, residual=torch.empty(1, 64, dtype=dtype))
    one, seeds = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    tokens = torch.zeros(1, 1, dtype=torch.int32)
    logits = torch.empty(1, 128_256, dtype=dtype)
    for lines in (1, FEW_LINES + 1):
        triton_ops.sample(logits.expand(lines, -1), one, one, torch.zeros(1), seeds, tokens)
    row = (one, one, tokens, one, torch.zeros(1, 3))
    triton_ops.penalize(logits, seeds, *row, max_position=1)
    triton_ops.top_logprobs(logits, seeds, one, 20)
    for index in (one, seeds):
        triton_ops.gather_rows(torch.empty(9, 2048, dtype=dtype), index)
    for values in (one, seeds, torch.zeros(1)):
        triton_ops.scatter(values, seeds, values)
    triton_ops.step_tokens(tokens, one, torch.zeros(2, dtype=torch.int32), one, 1, 1)


def launch_invariant_products(dtype: torch.dtype) -> None:
    """With the smallest and the largest tiles; in stretches beside and after each other."""
    counts = (1, 300) if dtype == torch.bfloat16 else (1,)
    for k, gated in ((2048, True), (8192, False)):
        weight = invariant_ops.pack_weight(torch.empty(256, k, dtype=dtype))
        for rows in counts:
            x, residual = (torch.empty(rows, n, dtype=dtype) for n in (k, 256))
            invariant_product(x, weight, gated=gated, residual=None if gated else residual)
    for rows in counts:
        x, bias = torch.empty(rows, k, dtype=dtype), torch.empty(256, dtype=dtype)
        invariant_product(x, weight, bias, gated=True)


def launch_skinny_products(dtype: torch.dtype) -> None:
    """Of each number of rows that has tiles of its own, with what reads them."""
    skinny.multiprocessors = lambda _: 132
    biases = None, torch.empty(576, dtype=dtype), None
    for rows, width, bias in zip((16, 32, 64), (2048, 576, 4096), biases, strict=True):
        x, gain = torch.empty(rows, width, dtype=dtype), torch.empty(width, dtype=dtype)
        weight = triton_ops.pack_weight(torch.empty(width, width, dtype=dtype))
        added = skinny_product(x, weight, bias, partial=True)
        triton_ops.norm_linear(Unsummed(x, added), gain, 1e-5, weight)
        skinny_product(x, weight, bias)
        skinny_product(x, weight, bias, gated=True)
    pool = torch.empty(rows, 1, 4, 256, dtype=dtype)
    positions, slots = (torch.zeros(rows, dtype=kind) for kind in (torch.int32, torch.int64))
    triton_ops.rope_and_write_kv(added, positions, torch.empty(1, 256), slots, pool, pool, 8)


def launches(found: dict[str, triton.JITFunction]) -> list[tuple[str, tuple, dict]]:
    """(kernel, arguments, keywords) of every launch."""
    recorded: list[tuple[str, tuple, dict]] = []

    def record(name: str, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        recorded.append((name, arguments, keywords))

    for name, kernel in found.items():
        kernel.run = partial(record, name)
    for dtype, head_dims in ((torch.bfloat16, TRITON_HEAD_DIMS), (torch.float32, (64, 256))):
        for head_dim in head_dims:
            launch_attention(triton_ops, head_dim, dtype)
        for head_dim in (64, 80):
            launch_rope(head_dim, dtype)
        launch_attention(invariant_ops, 64 if dtype == torch.bfloat16 else 32, dtype)
        launch_others(dtype)
        launch_invariant_products(dtype)
    for head_dim in (64, 128):
        launch_hopper_attention(head_dim)
    launch_skinny_products(torch.bfloat16)
    return recorded


def type_of(argument: object) -> str:
    if isinstance(argument, torch.Tensor):
        return f"*{TYPES[argument.dtype]}"
    if isinstance(argument, TensorDescriptor):
        box = ", ".join(map(str, argument.block_shape))
        return f"tensordesc<{TYPES[argument.base.dtype]}[{box}],{argument.layout!r}>"
    return TYPES[type(argument)]


def _divides(parameter: Any, argument: object) -> bool:
    """Whether the launch promises that the pointer or number is a multiple of 16."""
    if isinstance(argument, int):
        return argument % 16 == 0 and not parameter.do_not_specialize
    return isinstance(argument, torch.Tensor)


def source_of(kernel: triton.JITFunction, arguments: tuple, keywords: dict) -> ASTSource:
    given = dict(zip(kernel.arg_names, arguments, strict=False)) | keywords
    signature, constants, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            signature[name], constants[(index,)] = "constexpr", given[name]
        else:
            signature[name] = type_of(given[name])
            if _divides(parameter, given[name]):
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    return source(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)


def traits_of(source: ASTSource, keywords: dict) -> set[tuple]:
    """Head_dims of one padded width are alike, unless they fill it."""
    types = tuple(source.signature.values())
    traits = {(name, x) for name, x in keywords.items() if name in TRAITS or isinstance(x, bool)}
    traits |= {types, (types, keywords.get("PACKED"))}
    head_dim = keywords.get("HEAD_DIM", 1)
    return traits | {(next_power_of_2(head_dim), head_dim == next_power_of_2(head_dim))}


def compile_one(source: ASTSource, keywords: dict, *, whole: bool) -> Compiled:
    """As `triton.compile`, but for a hash of all of Triton and what is kept in files."""
    given = {name: value for name, value in keywords.items() if name in OPTIONS}
    options = BACKEND.parse_options(given)
    context = ir.context()
    ir.load_dialects(context)
    BACKEND.load_dialects(context)
    generated = BACKEND.get_codegen_implementation(options), BACKEND.get_module_map()
    module = source.make_ir(TARGET, options, *generated, context)
    stages: dict[str, Any] = {}
    BACKEND.add_stages(stages, options, source.language)
    results: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for name in stages if whole else [n for n in ("ttir", "ttgir") if n in stages]:
        module = results[name] = stages[name](module, metadata)
    shared = metadata["shared"] if whole else shared_memory(module, options)
    assert shared <= SHARED_MEMORY, shared
    if not whole:
        return Compiled(None, shared)
    assert ".target sm_90a" in results["ptx"]
    assert len(results["cubin"]) > 0
    return Compiled(results["ptx"], shared)


def shared_memory(module: Any, options: Any) -> int:
    """Of a module whose layouts are decided; as the backend's next stage begins."""
    manager = ir.pass_manager(module.context)
    passes.ttgpuir.add_combine_tensor_select_and_if(manager)
    passes.ttgpuir.add_allocate_warp_groups(manager, False)
    passes.convert.add_scf_to_cf(manager)
    passes.gluon.add_inliner(manager)
    version = get_ptx_version_from_options(options, TARGET.arch)
    nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, TARGET.arch, version)
    manager.run(module, "shared_memory")
    return module.get_int_attr("ttg.shared")


def check_chains(order: SumOrder, dtype: str, keywords: dict) -> None:
    """Each score and each value is one chain of products over its whole tile. What lies beside a
    head's own columns is zeros, and where that begins is a whole number of steps away."""
    depth = 16 if dtype == "bf16" else 1  # of a step
    chains = {keywords["BLOCK_D"] // depth, keywords["TILE"] // depth}
    assert order.chains - {1} == chains - {1}, (keywords, order.chains)
    assert keywords["PACKED"] == 1 or keywords["HEAD_DIM"] % depth == 0, keywords


def main() -> None:
    found = kernels_of_package()
    recorded = launches(found)
    if missing := set(found) - {name for name, _, _ in recorded}:
        sys.exit(f"no launch of {sorted(missing)}")
    gc.disable()  # what a compiler makes lives to the end of a kernel or of the process
    seen: dict[str, set[tuple]] = {name: set() for name in found}  # traits of what is whole
    done = set[str]()
    alone: dict[tuple[str, int], SumOrder] = {}  # decode attention with one head to a program
    merged: dict[int, Counter[str]] = {}  # the sums of its merging, likewise
    multiplied: dict[int, dict[str, float]] = {}  # those of a Hopper card's own, of a head
    for name, arguments, given in recorded:
        # As on a Hopper card.
        hopper = {"PDL": WAIT_AND_LET, "launch_pdl": True} if "PDL" in given else {}
        keywords = given | hopper
        source = source_of(found[name], arguments, keywords)
        if (form := f"{name} {source.hash()} {keywords}") in done:
            continue
        done.add(form)
        traits = traits_of(source, keywords)
        compiled = compile_one(source, keywords, whole=not traits <= seen[name])
        dtype, head_dim = type_of(arguments[0]).removeprefix("*"), keywords.get("HEAD_DIM", "")
        print(name, dtype, head_dim, f"{compiled.shared} bytes of shared memory")
        if compiled.ptx is None:
            continue
        seen[name] |= traits
        if name == "decode_kernel":
            order = sum_order(compiled.ptx)
            check_chains(order, dtype, keywords)
            assert alone.setdefault((dtype, head_dim), order).softmax == order.softmax, order
            if keywords["PACKED"] > 1:
                print(name, dtype, head_dim, f"adds alike, {keywords['PACKED']} heads or one")
        if name == "hopper_decode_kernel":
            # A head's queries are multiplied, weighed and added up as they are beside another's.
            packed = keywords["PACKED"]
            counts = {x: n / packed for x, n in Counter(HOPPER_SUMS.findall(compiled.ptx)).items()}
            assert counts == multiplied.setdefault(head_dim, counts), keywords
            assert counts["wgmma.mma_async.sync.aligned.m64n8k16"] > 0
            if packed > 1:
                print(name, dtype, head_dim, f"adds alike, {packed} heads or one")
        if name == "merge_kernel":
            # Of few results a thread adds its own, by fma; of many one head is added at a time.
            taken, sums = keywords["TAKEN"], Counter(MERGED_SUMS.findall(compiled.ptx))
            assert sums == merged.setdefault(head_dim, sums), keywords
            if taken > 1:
                print(name, dtype, head_dim, f"adds alike, {taken} heads or one")


if __name__ == "__main__":
    main()
