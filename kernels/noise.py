"""Gumbel noise that is a function of (seed, position, token id) alone.

A counter-based hash: no state, no order, so a row's noise is the same whoever shares its batch and
however often a position is computed again. Every face computes the same integers: 32-bit adds,
multiplies, exclusive ors and logical shifts. The mixing steps are the finalizer of MurmurHash3
(public domain), in which every input bit reaches every output bit.

    mix(h):   h ^= h >> 16; h *= 0x85EBCA6B; h ^= h >> 13; h *= 0xC2B2AE35; h ^= h >> 16
    a       = mix(low half of seed + 0x9E3779B9)
    b       = mix(high half of seed ^ a)
    key0    = mix(position + b)
    key1    = mix(key0 ^ a)
    bits    = mix((mix(token * 0x9E3779B1) + key0) ^ key1)
    uniform = ((bits >> 9) + 0.5) * 2**-23        exact in fp32, never 0 or 1
    noise   = -log(-log(uniform))                 from -2.82 to 16.64
"""

import torch

GOLDEN = 0x9E3779B9
TOKEN_STEP = 0x9E3779B1
MIX_1 = 0x85EBCA6B
MIX_2 = 0xC2B2AE35

# A temperature below this is greedy: dividing by it would overflow before it could matter.
MIN_TEMPERATURE = 1e-5


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _shift(h: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift; torch's own on int32 copies the sign bit."""
    return (h >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def mix(h: torch.Tensor) -> torch.Tensor:
    """MurmurHash3's 32-bit finalizer on int32 tensors (products wrap)."""
    h = h ^ _shift(h, 16)
    h = h * _signed(MIX_1)
    h ^= _shift(h, 13)
    h *= _signed(MIX_2)
    h ^= _shift(h, 16)
    return h


def row_keys(seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(key0, key1), int32 [s], of seeds int64 [s] and positions int32 [s]."""
    low = seeds.to(torch.int32)
    high = (seeds >> 32).to(torch.int32)
    a = mix(low + _signed(GOLDEN))
    b = mix(high ^ a)
    key0 = mix(positions + b)
    return key0, mix(key0 ^ a)


def token_hashes(tokens: torch.Tensor) -> torch.Tensor:
    """The part of the hash that int32 token ids alone decide."""
    return mix(tokens * _signed(TOKEN_STEP))


def noise_bits(key0: torch.Tensor, key1: torch.Tensor, hashes: torch.Tensor) -> torch.Tensor:
    """int32 hash bits of broadcast keys and token hashes."""
    return mix((hashes + key0).bitwise_xor_(key1))


def gumbel(bits: torch.Tensor) -> torch.Tensor:
    """fp32 Gumbel noise of int32 hash bits."""
    uniform = (_shift(bits, 9).to(torch.float32) + 0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()
