"""Compile every Triton kernel for sm_90; run by test_compile.py in a process of its own.

Prints one line per kernel and shape: name, bytes of shared memory. Needs no GPU.
"""

import importlib
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import paged_attention_decode, paged_attention_prefill
from kernels.shapes import TRITON_HEAD_DIMS

SHARED_MEMORY = 227 * 1024
MODULES = (
    "linear",
    "paged_attention_decode",
    "paged_attention_prefill",
    "rms_norm",
    "rope_and_write_kv",
    "sample",
    "silu_and_mul",
)
POINTERS = {
    "rows": "*i32", "context_lens": "*i32", "query_starts": "*i32", "block_tables": "*i32",
    "positions": "*i32", "slot_mapping": "*i64", "seeds": "*i64", "temperatures": "*fp32",
    "cos_sin": "*fp32", "partial": "*fp32", "partial_stats": "*fp32", "best_scores": "*fp32",
    "best_ids": "*i32", "bad": "*i32", "ids": "*i32", "non_finite": "*i1",
}  # fmt: skip
SCALARS = {
    "scale": "fp32", "eps": "fp32", "table_width": "i32", "max_splits": "i32", "n": "i32",
    "vocab": "i32", "stretches": "i32",
}  # fmt: skip


def attention(head_dim: int, dtype: str) -> list[tuple[str, dict, str]]:
    fp32 = dtype == "fp32"
    block_d = triton.next_power_of_2(head_dim)
    shape = {
        "HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": head_dim, "BLOCK_SIZE": 16, "BLOCK_D": block_d,
        "UPCAST": False,
    }  # fmt: skip
    decode = {**shape, **paged_attention_decode.tile_config(head_dim, fp32), "SPLIT": 256}
    prefill = {**shape, **paged_attention_prefill.tile_config(head_dim, fp32)}
    return [
        ("decode_kernel", {**decode, "BLOCK_G": 16}, dtype),
        ("prefill_kernel", prefill, dtype),
    ]


def cases() -> list[tuple[str, dict, str]]:
    found = []
    for dtype, head_dims in (("bf16", (64, 128, 256)), ("fp32", (64, 256))):
        assert set(head_dims) <= set(TRITON_HEAD_DIMS)
        for head_dim in head_dims:
            found += attention(head_dim, dtype)
    rope = {"NUM_HEADS": 32, "KV_HEADS": 8, "HEAD_DIM": 80, "BLOCK_H": 16, "BLOCK_HALF": 64}
    gemv = {"K": 2048, "ROWS": 2, "BLOCK_K": 1024, "HAS_BIAS": True, "num_warps": 4}
    merge = {"HEADS": 32, "HEAD_DIM": 128, "SPLIT": 256, "FEW": 4, "MANY": 32, "BLOCK_D": 128}
    for dtype in ("bf16", "fp32"):
        found += [
            ("merge_kernel", merge, dtype),
            ("rms_norm_kernel", {"WIDTH": 4096, "BLOCK": 4096, "HAS_RESIDUAL": True}, dtype),
            ("rope_and_write_kv_kernel", rope, dtype),
            ("silu_and_mul_kernel", {"WIDTH": 8192, "BLOCK": 1024}, dtype),
            ("gemv_kernel", gemv, dtype),
            ("best_of_stretch_kernel", {"STRETCH": 4096, "num_warps": 8}, dtype),
        ]
    return [*found, ("best_of_row_kernel", {"BLOCK": 32, "num_warps": 1}, "bf16")]


def kernels_of_package() -> dict[str, triton.JITFunction]:
    modules = [importlib.import_module(f"kernels.{name}") for name in MODULES]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_kernel") and isinstance(value, triton.JITFunction)
    }


def compile_one(kernel: triton.JITFunction, constants: dict, dtype: str) -> int:
    """Bytes of shared memory."""
    constants = dict(constants)
    options = {k: constants.pop(k) for k in ("num_warps", "num_stages") if k in constants}
    signature, constexprs, attributes = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            constexprs[(index,)] = constants[name]
        else:
            signature[name] = SCALARS.get(name) or POINTERS.get(name, f"*{dtype}")
            if signature[name].startswith("*"):
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert ".target sm_90a" in compiled.asm["ptx"]
    assert len(compiled.asm["cubin"]) > 0
    assert compiled.metadata.shared <= SHARED_MEMORY, compiled.metadata.shared
    return compiled.metadata.shared


def main() -> None:
    kernels = kernels_of_package()
    missing = set(kernels) - {name for name, _, _ in cases()}
    if missing:
        sys.exit(f"no case compiles {sorted(missing)}")
    for name, constants, dtype in cases():
        shared = compile_one(kernels[name], constants, dtype)
        print(name, dtype, constants.get("HEAD_DIM", ""), f"{shared} bytes of shared memory")


if __name__ == "__main__":
    main()
