"""The tiles of `kernels.invariant_product`, which move its speed and no bit."""

# Up to so many rows: from so many lines of weights on, those of all stretches, this tile: its rows,
# columns and depth, warps and stages (measured on an H200). Few lines take narrow tiles, which are
# more programs.
_FP32 = ((1 << 62, ((0, (32, 32, 32, 4, 2)),)),)
_FEW = (
    (16, ((8192, (16, 64, 128, 4, 5)), (3072, (16, 32, 128, 4, 6)), (0, (16, 16, 256, 4, 4)))),
    (32, ((8192, (32, 64, 128, 4, 4)), (3072, (32, 32, 256, 4, 4)), (0, (32, 16, 256, 4, 4)))),
    (64, ((16384, (64, 64, 64, 4, 5)), (3072, (64, 32, 128, 4, 4)), (0, (64, 16, 128, 4, 5)))),
)
_PLAIN = (
    *_FEW,
    (128, ((65536, (128, 64, 64, 4, 4)), (8192, (64, 64, 64, 4, 5)), (0, (64, 32, 128, 4, 4)))),
    (512, ((8192, (128, 128, 64, 8, 4)), (0, (64, 64, 64, 4, 5)))),
    (1 << 62, ((8192, (128, 128, 64, 8, 4)), (0, (128, 128, 64, 8, 3)))),
)
# Of the gate's columns and of as many others.
_GATED = (
    *_FEW,
    (128, ((0, (128, 32, 64, 4, 4)),)),
    (512, ((0, (128, 128, 64, 8, 4)),)),
    (1 << 62, ((0, (128, 64, 64, 8, 3)),)),
)


def tile_config(rows: int, lines: int, gated: bool, fp32: bool) -> dict[str, int]:
    """The tile of a product of `rows` rows with `lines` lines of weights in all stretches."""
    table = _FP32 if fp32 else _GATED if gated else _PLAIN
    choices = next(choices for most, choices in table if rows <= most)
    m, n, k, warps, stages = next(tile for least, tile in choices if lines >= least)
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "num_warps": warps, "num_stages": stages}
