"""The op table: a record of functions per face, with the signatures of `kernels.reference`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels.packed_weight import PackedWeight
from kernels.shapes import check_supported

__all__ = ["FACES", "Ops", "PackedWeight", "check_supported", "ops"]

FACES = ("auto", "reference", "cpu", "triton")


def _no_plan(*_: Any, **__: Any) -> None:
    return None


def _itself(residual: torch.Tensor) -> torch.Tensor:
    return residual


@dataclass(frozen=True)
class Ops:
    """The functions that a model is made of; `kernels.reference` documents each.

    `plan_decode(k_pool, block_tables, rows, context_lens, total_context)` and
    `plan_prefill(k_pool, block_tables, rows, query_starts, context_lens, num_heads, most_tokens)`
    prepare what all layers of a step share; an op given no `plan` makes its own. k_pool is any
    layer's; total_context and most_tokens are upper bounds of the sums of context lengths and of
    queries.

    A face may leave a product's last additions to the kernel that reads it: `norm_qkv` is
    `norm_linear` for `rope_and_write_kv` alone, and what `add_linear` returns is for a norm that a
    product follows. Once that has read it, `summed` gives the residual [t, h]. `logits` is
    `norm_linear` for the head, whose sums a face may leave in fp32: rounded to bf16, which keeps
    eight bits, likely tokens tie.
    """

    face: str
    rms_norm: Callable[..., torch.Tensor]
    rope_and_write_kv: Callable[..., torch.Tensor]
    paged_attention_decode: Callable[..., torch.Tensor]
    paged_attention_prefill: Callable[..., torch.Tensor]
    silu_and_mul: Callable[..., torch.Tensor]
    pack_weight: Callable[[torch.Tensor], PackedWeight]
    linear: Callable[..., torch.Tensor]
    norm_linear: Callable[..., torch.Tensor]
    logits: Callable[..., torch.Tensor]
    norm_qkv: Callable[..., Any]
    norm_gated_linear: Callable[..., torch.Tensor]
    add_linear: Callable[..., Any]
    sample: Callable[..., torch.Tensor]
    penalize: Callable[..., torch.Tensor]
    top_logprobs: Callable[..., torch.Tensor]
    gather_rows: Callable[..., torch.Tensor]
    scatter: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    step_tokens: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    plan_decode: Callable[..., Any] = _no_plan
    plan_prefill: Callable[..., Any] = _no_plan
    summed: Callable[[Any], torch.Tensor] = _itself


def ops(device: torch.device | str, face: str = "auto", batch_invariant: bool = False) -> Ops:
    """The ops of `face` for tensors on `device`; "auto" is triton on CUDA and cpu elsewhere.

    With `batch_invariant` the result for a token has the same bits whatever else is in the step and
    whether it is a decode or part of a chunk. The faces on a CPU are so anyway. Triton is imported
    only where its face is asked for. On a CPU it runs in Triton's interpreter, for tests:
    TRITON_INTERPRET=1 must be set before the first call.
    """
    kind = torch.device(device).type
    if face not in FACES:
        raise ValueError(f"face {face!r} is not one of {FACES}")
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device {device} is not supported: use cpu or cuda")
    if face == "auto":
        face = "triton" if kind == "cuda" else "cpu"
    if face == "reference":
        from kernels import reference

        return _table(reference, "reference")
    if face == "cpu":
        if kind != "cpu":
            raise ValueError(f"face 'cpu' does not run on {device}: use 'triton' or 'auto'")
        from kernels import cpu

        more = {name: getattr(cpu, name) for name in ("logits", *_PLANS)}
        return _table(cpu, "cpu", **more)
    from kernels import triton_ops

    triton_ops.check_device(kind)
    module: Any = triton_ops
    if batch_invariant:
        from kernels import invariant_ops

        module = invariant_ops
    more = {name: getattr(module, name) for name in _PLANS}
    if not batch_invariant:
        more |= {"norm_qkv": module.norm_qkv, "summed": module.summed}
    return _table(module, "triton", **more)


def _table(module: Any, face: str, **more: Callable[..., Any]) -> Ops:
    names = Ops.__dataclass_fields__.keys() - {"face", "norm_qkv", "logits", "summed", *_PLANS}
    functions = {name: getattr(module, name) for name in names}
    plain = {"norm_qkv": module.norm_linear, "logits": module.norm_linear}
    return Ops(face=face, **(plain | functions | more))


_PLANS = ("plan_decode", "plan_prefill")
