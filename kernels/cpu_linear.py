"""Matrix products of the CPU face, whose result for a row does not depend on the row count.

Libraries choose a kernel, and so an order of summation, by the number of rows. Which counts agree
bit for bit depends on the machine, so it is measured: the first time a (shape, row count) is met,
random rows are multiplied at that count and in tiles of TILE rows. A count that agrees is used as
it is from then on; one that does not is padded, or cut into counts that agree.
"""

from functools import cache

import torch
from torch.nn.functional import pad

from kernels import cpu_product
from kernels.packed_weight import PackedWeight

TILE = 32
FP32_CHUNK = 96
_PADDED = (2, 4, 8, 16, TILE)
_CUTS = (512, 256, 128, 64, TILE)


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """weight [n, k] -> oneDNN's blocked layout (chosen for 8 rows), which is made only once; in
    fp32 cut along k, see `_multiply`. Where our own kernel takes the weight, its tiles."""
    if cpu_product.takes(weight):
        tiles = cpu_product.pack(weight)
        return PackedWeight(weight.shape[0], weight.shape[1], weight.dtype, tiles)
    chunk = FP32_CHUNK if weight.dtype == torch.float32 else weight.shape[1]
    data = [part.contiguous() for part in weight.detach().split(chunk, dim=1)]
    if torch.backends.mkldnn.is_available() and _onednn_takes(weight.dtype):
        data = [torch.ops.mkldnn._reorder_linear_weight(part, 8) for part in data]
    return PackedWeight(weight.shape[0], weight.shape[1], weight.dtype, tuple(data))


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [t, k] -> [t, n]; see `kernels.reference.linear`, or `add_linear` for a residual."""
    if cpu_product.packed(weight):
        return cpu_product.multiply(x, weight, bias, residual)
    rows = x.shape[0]
    if rows == 0:
        return x.new_empty((0, weight.out_features))
    pieces = _pieces(_shape_of(weight, bias, residual), rows)
    if pieces == (rows,):
        return _multiply(x, weight, bias, residual)
    out, start = [], 0
    for size in pieces:
        part, added = (
            None if columns is None else columns[start : start + size] for columns in (x, residual)
        )
        if missing := size - part.shape[0]:
            part, added = (
                None if lines is None else pad(lines, (0, 0, 0, missing)) for lines in (part, added)
            )
        out.append(_multiply(part, weight, bias, added)[: rows - start])
        start += size
    return out[0] if len(out) == 1 else torch.cat(out)


def _onednn_takes(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


def _multiply(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """In fp32 the sum over k is one of chunks: oneDNN keeps one accumulator per result, and a
    large term (a massive activation) in it would cost all later terms their last bits. In other
    dtypes the residual is added before the sum is rounded."""
    if len(weight.data) == 1:
        return _product(x, weight.data[0], bias, residual)
    parts = x.split(FP32_CHUNK, dim=1)
    out = _product(parts[0].contiguous(), weight.data[0], bias)
    for part, data in zip(parts[1:], weight.data[1:], strict=True):
        out += _product(part.contiguous(), data, None)
    return out if residual is None else out.add_(residual)


def _product(
    x: torch.Tensor,
    data: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    if not data.is_mkldnn:
        out = torch.nn.functional.linear(x, data, bias)
        return out if residual is None else out.add_(residual)
    if residual is None:
        return _plain(x, data, bias, "none", [], "")
    return _adding(x, residual, data, bias, "add")


_plain = torch.ops.mkldnn._linear_pointwise.default
_adding = torch.ops.mkldnn._linear_pointwise.binary


# (out_features, in_features, dtype, has bias, has residual, threads): all that the choice of a
# kernel can see.
Shape = tuple[int, int, torch.dtype, bool, bool, int]


def _shape_of(
    weight: PackedWeight, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> Shape:
    adds, threads = (bias is not None, residual is not None), torch.get_num_threads()
    return (weight.out_features, weight.in_features, weight.dtype, *adds, threads)


@cache
def _pieces(shape: Shape, rows: int) -> tuple[int, ...]:
    """Row counts that agree and together cover `rows`; the last may be padded."""
    if rows <= _CUTS[0] and _agrees(shape, rows):
        return (rows,)
    if rows < TILE:
        return (next(size for size in _PADDED if size > rows and _agrees(shape, size)),)
    size = next(size for size in _CUTS if size <= rows and _agrees(shape, size))
    return (size,) if size == rows else (size, *_pieces(shape, rows - size))


@cache
def _agrees(shape: Shape, rows: int) -> bool:
    """Whether every row of a product of `rows` rows equals, bit for bit, the same row in a tile."""
    if rows == TILE:
        return True
    weight, bias, columns = _probe(shape)
    generator = torch.Generator().manual_seed(rows)
    values = torch.randn(rows, shape[1] // 2 + 1, generator=generator).to(shape[2])
    x = values[:, columns.abs() - 1] * columns.sign().to(shape[2])
    added = None
    if shape[4]:  # as small as the rounding of the products, so that its place in the sum shows
        added = (2**-22 * torch.randn(rows, shape[0], generator=generator)).to(shape[2])
    tiles = []
    for start in range(0, rows, TILE):
        tile, more = (None if t is None else _tile(t, start) for t in (x, added))
        tiles.append(_multiply(tile, weight, bias, more))
    return torch.equal(_multiply(x, weight, bias, added), torch.cat(tiles)[:rows])


def _tile(lines: torch.Tensor, start: int) -> torch.Tensor:
    part = lines[start : start + TILE]
    return pad(part, (0, 0, 0, TILE - part.shape[0]))


def _probe(shape: Shape) -> tuple[PackedWeight, torch.Tensor | None, torch.Tensor]:
    """(weight, bias, columns) whose products cancel in pairs, so that a result is all rounding.

    Any other order of the sum then shows, also through the rounding to bf16. Column j of an input
    is its value |columns[j]| - 1 with the sign of columns[j]. The weight repeats a few features and
    is not kept: it is as large as the layer's.
    """
    n, k, dtype, has_bias, *_ = shape
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randperm(k, generator=generator)
    index = pairs // 2
    columns = torch.where(pairs % 2 == 0, index + 1, -(index + 1))
    features = torch.randn(64, k // 2 + 1, generator=generator).to(dtype)[:, index]
    weight = features.repeat(-(-n // 64), 1)[:n]
    bias = torch.zeros(n, dtype=dtype) if has_bias else None
    return pack_weight(weight), bias, columns
