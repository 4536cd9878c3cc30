"""Rotary embedding of q and k, and the write of k and v into the pool.

A program takes a few heads of one token's packed qkv, or of the parts that add up to it.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import next_power_of_2
from kernels.partial_sums import PartialSums, sum_parts
from kernels.pdl import follow, pdl_options

HEADS_PER_PROGRAM = 16


@triton.jit(do_not_specialize_on_alignment=["positions", "slot_mapping"])
def rope_and_write_kv_kernel(
    qkv, bias, positions, cos_sin, slot_mapping, k_pool, v_pool, q_out,
    NUM_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr,
    SPLITS: tl.constexpr, HAS_BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    halves = tl.arange(0, BLOCK_HALF)[None, :]
    HALF: tl.constexpr = HEAD_DIM // 2
    TURNING: tl.constexpr = NUM_HEADS + KV_HEADS
    ALL: tl.constexpr = TURNING + KV_HEADS
    in_half = halves < HALF

    # Not written by the product, which is the kernel before.
    angle = cos_sin + tl.load(positions + token).to(tl.int64) * HEAD_DIM + halves
    cos = tl.load(angle, mask=in_half, other=0.0)
    sin = tl.load(angle + HALF, mask=in_half, other=0.0)
    # 64 bits before the multiply: slot * heads * head_dim passes 2**31 in a large pool.
    slot = tl.load(slot_mapping + token).to(tl.int64) * KV_HEADS * HEAD_DIM
    here = (heads < ALL) & in_half
    if HAS_BIAS:
        offsets = bias + heads * HEAD_DIM + halves
        first_offset = tl.load(offsets, mask=here, other=0.0).to(tl.float32)
        second_offset = tl.load(offsets + HALF, mask=here, other=0.0).to(tl.float32)
    follow(PDL)
    places = token * ALL * HEAD_DIM + heads * HEAD_DIM + halves
    size = tl.num_programs(0) * ALL * HEAD_DIM
    first = sum_parts(qkv, places, here, size, SPLITS).to(tl.float32)
    second = sum_parts(qkv, places + HALF, here, size, SPLITS).to(tl.float32)
    if HAS_BIAS:
        first += first_offset
        second += second_offset
    # Rounded where the product, as a kernel of its own, would leave it.
    first = first.to(q_out.dtype.element_ty).to(tl.float32)
    second = second.to(q_out.dtype.element_ty).to(tl.float32)
    is_value = heads >= TURNING
    new_first = tl.where(is_value, first, first * cos - second * sin)
    new_second = tl.where(is_value, second, second * cos + first * sin)
    new_first = new_first.to(q_out.dtype.element_ty)
    new_second = new_second.to(q_out.dtype.element_ty)

    is_query = heads < NUM_HEADS
    target = q_out + token * NUM_HEADS * HEAD_DIM + heads * HEAD_DIM + halves
    tl.store(target, new_first, mask=here & is_query)
    tl.store(target + HALF, new_second, mask=here & is_query)
    is_key = (heads >= NUM_HEADS) & (heads < TURNING)
    target = k_pool + slot + (heads - NUM_HEADS) * HEAD_DIM + halves
    tl.store(target, new_first, mask=here & is_key)
    tl.store(target + HALF, new_second, mask=here & is_key)
    target = v_pool + slot + (heads - TURNING) * HEAD_DIM + halves
    tl.store(target, new_first, mask=here & is_value)
    tl.store(target + HALF, new_second, mask=here & is_value)


def rope_and_write_kv(
    qkv: torch.Tensor | PartialSums,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    num_heads: int,
) -> torch.Tensor:
    """See `kernels.reference.rope_and_write_kv`."""
    if isinstance(qkv, torch.Tensor):
        qkv = PartialSums(qkv[None], None, qkv.dtype)
    splits, tokens, _ = qkv.parts.shape
    kv_heads, head_dim = k_pool.shape[2:]
    q = torch.empty((tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.parts.device)
    if tokens:
        grid = (tokens, triton.cdiv(num_heads + 2 * kv_heads, HEADS_PER_PROGRAM))
        rope_and_write_kv_kernel[grid](
            qkv.parts, q if qkv.bias is None else qkv.bias,
            positions, cos_sin, slot_mapping, k_pool, v_pool, q,
            NUM_HEADS=num_heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim,
            BLOCK_H=HEADS_PER_PROGRAM, BLOCK_HALF=next_power_of_2(head_dim // 2),
            SPLITS=splits, HAS_BIAS=qkv.bias is not None, num_warps=2,
            **pdl_options(tokens),
        )  # fmt: skip
    return q
