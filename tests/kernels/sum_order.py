"""In which order a compiled kernel of decode attention adds, read from its PTX."""

import re
from collections import Counter
from dataclasses import dataclass

# Destination and summand of a matrix instruction, and of a product that is added.
_DOTS = (
    re.compile(r"mma\.sync\S+\s*\{(.*?)\}\s*,\s*\{.*?\}\s*,\s*\{.*?\}\s*,\s*\{(.*?)\}\s*;", re.S),
    re.compile(r"fma\.rn\.f32\s+(%\w+), %\w+, %\w+, (\S+);"),
)
# What turns scores into weights and adds those up, with shuffles' lane masks and without registers.
_SOFTMAX = re.compile(r"\b(ex2\S+|add\.f32|shfl\.sync\.bfly\.b32)\b(?:.*?(\d+, \d+, -1))?")


@dataclass(frozen=True)
class SumOrder:
    """`chains`: in how many steps, one after the other, the results of products are added up.
    `softmax`: how many of each instruction there are between the products of scores and those of
    values. Another division of the positions among threads and warps takes others."""

    chains: frozenset[int]
    softmax: Counter[tuple[str, str]]


def sum_order(ptx: str) -> SumOrder:
    pattern = _DOTS[0] if "mma.sync" in ptx else _DOTS[1]
    products = list(pattern.finditer(ptx))
    lengths: dict[str, int] = {}  # of the chain that ends in these registers
    for product in products:
        destination, summand = ("".join(registers.split()) for registers in product.groups())
        lengths[destination] = lengths.pop(summand, 0) + 1
    softmax = _SOFTMAX.findall(ptx, ptx.index("ex2."), products[-1].start())
    while softmax[-1][0] != "add.f32":  # what moves results to other threads
        softmax.pop()
    return SumOrder(frozenset(lengths.values()), Counter(softmax))
