"""The Triton face: every launcher under its name in the op table."""

from kernels.decode_plan import plan_decode
from kernels.gather_rows import gather_rows
from kernels.launch import check_device
from kernels.linear import (
    add_linear,
    linear,
    norm_gated_linear,
    norm_linear,
    norm_qkv,
    pack_weight,
    summed,
)
from kernels.paged_attention_decode import paged_attention_decode
from kernels.paged_attention_prefill import paged_attention_prefill, plan_prefill
from kernels.penalize import penalize
from kernels.rms_norm import rms_norm
from kernels.rope_and_write_kv import rope_and_write_kv
from kernels.sample import sample
from kernels.scatter import scatter
from kernels.silu_and_mul import silu_and_mul
from kernels.step_tokens import step_tokens
from kernels.top_logprobs import top_logprobs

__all__ = [
    "add_linear",
    "check_device",
    "gather_rows",
    "linear",
    "norm_gated_linear",
    "norm_linear",
    "norm_qkv",
    "pack_weight",
    "paged_attention_decode",
    "paged_attention_prefill",
    "penalize",
    "plan_decode",
    "plan_prefill",
    "rms_norm",
    "rope_and_write_kv",
    "sample",
    "scatter",
    "silu_and_mul",
    "step_tokens",
    "summed",
    "top_logprobs",
]
