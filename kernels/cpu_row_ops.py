"""The operations between products, compiled: each row of a step is an item."""

from typing import Any

import numpy as np
import torch
from numba import carray, njit

from kernels.compiled import address, empty, float_bits, inner, kernel, launch, pointer, take
from kernels.cpu_numbers import KINDS, exp, floats, narrow, size_of, to_float, widen


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `kernels.reference.rms_norm`."""
    out, (rows, width) = empty(tuple(x.shape), x.dtype), x.shape
    places = (address(tensor, x.dtype) for tensor in (x, weight, out))
    launch(norm, rows, rows * width, width, KINDS[x.dtype], float_bits(eps), *places)
    return out


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `kernels.reference.silu_and_mul`."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    dtype = gate_up.dtype
    out = empty((rows, width), dtype)
    places = address(gate_up, dtype), address(out, dtype)
    launch(_activate, rows, 4 * rows * width, width, KINDS[dtype], *places)
    return out


def rope_and_write_kv(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    num_heads: int,
) -> torch.Tensor:
    """See `kernels.reference.rope_and_write_kv`."""
    tokens, dtype = qkv.shape[0], qkv.dtype
    kv_heads, head_dim = k_pool.shape[2:]
    out = empty((tokens, num_heads, head_dim), dtype)
    launch(
        _rope,
        tokens,
        2 * qkv.numel(),
        KINDS[dtype],
        num_heads,
        kv_heads,
        head_dim,
        address(qkv, dtype),
        address(positions, torch.int32),
        address(cos_sin, torch.float32),
        address(slot_mapping, torch.int64),
        address(k_pool, dtype),
        address(v_pool, dtype),
        address(out, dtype),
    )
    return out


@njit(error_model="numpy", fastmath={"reassoc", "contract"})
def _mean_square(numbers: np.ndarray) -> np.float32:
    """In an order that depends on their count alone."""
    total = np.float32(0)
    for i in range(numbers.size):
        total += numbers[i] * numbers[i]
    return total / np.float32(numbers.size)


@kernel
def norm(arguments: Any) -> None:
    rows, width, kind, eps = arguments[1], arguments[2], arguments[3], arguments[4]
    x, weight, out = arguments[5], arguments[6], arguments[7]
    numbers, gain = np.empty(width, np.float32), np.empty(width, np.float32)
    widen(weight, kind, width, gain.ctypes.data)
    line = width * size_of(kind)
    while True:
        row = take(arguments)
        if row >= rows:
            break
        widen(x + row * line, kind, width, numbers.ctypes.data)
        mean = _mean_square(numbers)
        scale = np.float32(1) / np.sqrt(mean + to_float(np.uint32(eps)))
        for i in range(width):
            numbers[i] = numbers[i] * scale * gain[i]
        narrow(out + row * line, kind, numbers)


@kernel
def _activate(arguments: Any) -> None:
    rows, width, kind = arguments[1], arguments[2], arguments[3]
    gate_up, out = arguments[4], arguments[5]
    numbers = np.empty(2 * width, np.float32)
    gate, up = numbers[:width], numbers[width:]
    line = width * size_of(kind)
    while True:
        row = take(arguments)
        if row >= rows:
            break
        widen(gate_up + 2 * row * line, kind, 2 * width, numbers.ctypes.data)
        for i in range(width):
            gate[i] = gate[i] / (np.float32(1) + exp(-gate[i])) * up[i]
        narrow(out + row * line, kind, gate)


@inner
def _turn(head: np.ndarray, cos_sin: np.ndarray) -> None:
    half = head.size // 2
    for i in range(half):
        first, second = head[i], head[half + i]
        cos, sin = cos_sin[i], cos_sin[half + i]
        head[i] = first * cos - second * sin
        head[half + i] = second * cos + first * sin


@inner
def _copy(source: int, target: int, count: int) -> None:
    old = carray(pointer(source), (count,), np.uint8)
    copied = carray(pointer(target), (count,), np.uint8)
    for i in range(count):
        copied[i] = old[i]


@kernel
def _rope(arguments: Any) -> None:
    tokens, kind = arguments[1], arguments[2]
    heads, kv_heads, head_dim = arguments[3], arguments[4], arguments[5]
    qkv, cos_sin, out = arguments[6], arguments[8], arguments[12]
    positions = carray(pointer(arguments[7]), (tokens,), np.int32)
    slots = carray(pointer(arguments[9]), (tokens,), np.int64)
    k_pool, v_pool = arguments[10], arguments[11]
    size, kv_width = size_of(kind), kv_heads * head_dim
    turning = (heads + kv_heads) * head_dim
    numbers = np.empty(turning, np.float32)
    queries, keys = numbers[: heads * head_dim], numbers[heads * head_dim :]
    while True:
        token = take(arguments)
        if token >= tokens:
            break
        line = qkv + token * (turning + kv_width) * size
        widen(line, kind, turning, numbers.ctypes.data)
        turns = floats(cos_sin + 4 * head_dim * np.int64(positions[token]), head_dim)
        for start in range(0, turning, head_dim):
            _turn(numbers[start : start + head_dim], turns)
        narrow(out + token * heads * head_dim * size, kind, queries)
        slot = slots[token] * kv_width * size
        narrow(k_pool + slot, kind, keys)
        _copy(line + turning * size, v_pool + slot, kv_width * size)
