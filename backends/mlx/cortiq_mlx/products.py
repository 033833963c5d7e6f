"""Products of rows with weights: exact integer sums, one rounding a block, then ordered sums.

What is added after a matmul is integers again, so that one rounding is left, that of the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cortiq.numerics.contract import RUN_BLOCKS
from cortiq_mlx import custom_kernels
from cortiq_mlx.array_library import FLOATS
from cortiq_mlx.code_forms import CodeForm, MatrixCodes
from cortiq_mlx.exact_sums import (
    EXACT,
    PLANE,
    exact_matmul,
    exact_sum,
    planes,
    round_three_planes,
    round_two_planes,
)
from cortiq_mlx.kernel_sources import MATVEC
from cortiq_mlx.library import mx
from cortiq_mlx.quantised_rows import LARGEST_Q, Faults, MlxRows, snap

CELLS = 1 << 21
"""Numbers that a step of a product holds at a time, about: what a core's cache takes."""
LOW_BITS = 12
"""A sub-block's sum is cut here before its integer scale multiplies it."""


def float_product(values: mx.array, x: mx.array, faults: Faults) -> mx.array:
    """Add up snapped products in canonical order: x [C, M, K], values [C, N, K] to [C, M, N]."""
    (count, rows, _), height = x.shape, values.shape[1]
    step = max(1, CELLS // (count * rows * x.shape[2]))
    parts = []
    for start in range(0, height, step):
        some = values[:, None, start : start + step]
        products = snap((x[:, :, None] * some).reshape(faults.rows, -1), faults)
        parts.append(
            FLOATS.canonical_sum(products.reshape(count, rows, some.shape[2], -1)).squeeze(-1)
        )
    return snap(mx.concatenate(parts, axis=-1), faults)


def part_height(height: int, width: int, count: int) -> int:
    """Return the outputs of a part of a weight: those that one step holds as float32."""
    parts = 1 if count > 1 else max(1, round(height * width / CELLS))
    return -(-height // parts)


def code_product(parts: Sequence[MatrixCodes], x: MlxRows, faults: Faults) -> mx.array:
    """Compute snap((the contract's sum of blocks)·2^e): x [C, M, K] to float32 [C, M, N].

    parts : of the weight along N, all of the same height.
    """
    form, (slices, _, _, height) = parts[0].form, parts[0].codes[0].shape
    count, rows, width = x.q.shape
    missing = slices * form.piece - width
    q = mx.pad(x.q, [(0, 0), (0, 0), (0, missing)]) if missing else x.q
    pieces = q.reshape(count, rows, slices, form.piece).transpose(2, 0, 1, 3)
    step = max(1, 4 * CELLS // (slices * count * height * (1 if form.whole else 2)))
    bands = [
        _band(parts, pieces if step >= rows else pieces[:, :, start : start + step])
        for start in range(0, rows, step)
    ]
    return snap(_together(bands, -2) * FLOATS.exp2_int(x.e)[..., None], faults)


def _band(parts: Sequence[MatrixCodes], pieces: mx.array) -> mx.array:
    """Compute all outputs of some rows, part by part, so that memory is freed in between."""
    form, (slices, count, rows, _) = parts[0].form, pieces.shape
    few = count == 1 and rows <= custom_kernels.FEW_ROWS
    if few and form.planes == 1 and custom_kernels.active(MATVEC):
        q = pieces.transpose(1, 2, 0, 3).reshape(rows, slices * form.piece)
        return _together([custom_kernels.matvec(part, q) for part in parts], -1)[None]
    sides = _sides(form, pieces)
    done: list[mx.array] = []
    for part in parts:
        codes = tuple(mx.depends(list(part.codes), done[-1:])) if done else part.codes
        done.append(_sum_of_blocks(replace(part, codes=codes), sides, pieces.shape[2]))
    return _together(done, -1)


def _together(arrays: list[mx.array], axis: int) -> mx.array:
    return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays, axis=axis)


@dataclass(frozen=True)
class ProductRows:
    """Rows as products take them: `left` [slices, C, M or 2·M, piece], and sums of its pieces.

    sums : int32 [slices, C, M, 1], if the form needs them.
    """

    left: mx.array
    sums: mx.array | None


def _sides(form: CodeForm, pieces: mx.array) -> ProductRows:
    sums = None
    if form.shift or form.low:
        sums = exact_sum(pieces.astype(mx.int32), -1, LARGEST_Q, keepdims=True)
    if form.whole:
        return ProductRows(pieces, sums)
    return ProductRows(mx.concatenate([*planes(pieces)], axis=2), sums)


def _sum_of_blocks(weight: MatrixCodes, sides: ProductRows, rows: int) -> mx.array:
    """Add up the terms of the blocks in runs of 8, runs in order: [C, M, N]."""
    terms = _dots(weight, sides, rows) * weight.scale
    if weight.minimum is not None:
        terms = terms + _lows(weight, sides) * weight.minimum
    blocks = len(terms)
    if blocks == 1:
        return terms[0]
    size = min(blocks, RUN_BLOCKS)
    if blocks % size:
        terms = mx.pad(terms, [(0, -blocks % size), (0, 0), (0, 0), (0, 0)])
    runs = terms.reshape(-1, size, *terms.shape[1:])
    return in_order(in_order(runs, axis=1))


def in_order(terms: mx.array, axis: int = 0) -> mx.array:
    """Add up (t0 + t1) + … over an axis; that the contract starts at +0 only matters to a −0."""
    if terms.shape[axis] == 1:
        return terms.squeeze(axis)
    total, *more = mx.split(terms, terms.shape[axis], axis=axis)
    for term in more:
        total = total + term
    return total.squeeze(axis)


def _dots(weight: MatrixCodes, sides: ProductRows, rows: int) -> mx.array:
    """Return RN(I) of each block: float32 [blocks, C, M, N]."""
    form = weight.form
    if form.whole:
        dots = exact_matmul(sides.left, weight.codes[0], LARGEST_Q, form.limit)
        if not form.scaled:
            # Both are integers up to 2²⁴ in magnitude: the sum's one rounding is RN(I).
            return dots if not form.shift else dots + _shifted(sides, form).astype(mx.float32)
        return _scaled_pieces(weight, sides, dots)
    sums = [exact_matmul(sides.left, plane, PLANE, PLANE) for plane in weight.codes]
    if form.pieces == 1 and form.planes == 1:
        return sums[0][:, :, :rows] * 256.0 + sums[0][:, :, rows:]
    whole = [_over_pieces(s.astype(mx.int32), form) for s in sums]
    if form.planes == 1:
        return round_two_planes(whole[0][:, :, :rows], whole[0][:, :, rows:])
    if form.planes == 3:  # of few columns, so that the upper two sums are one
        (th, tl), (hh, lh), (hl, ll) = (mx.split(s, 2, axis=2) for s in whole)
        return round_three_planes(th * 256 + (tl + hh), hl + lh, ll)
    (hh, lh), (hl, ll) = (mx.split(s, 2, axis=2) for s in whole)
    return round_three_planes(hh, hl + lh, ll)


def _shifted(sides: ProductRows, form: CodeForm) -> mx.array:
    """Return the part of each piece's sum that the shift of the codes removed."""
    assert sides.sums is not None
    return sides.sums * form.shift


def by_block(x: mx.array, form: CodeForm) -> mx.array:
    """Reshape [slices, …] to [blocks, pieces, …]."""
    return x.reshape(-1, form.pieces, *x.shape[1:])


def _over_pieces(x: mx.array, form: CodeForm) -> mx.array:
    """Add up the plane sums of a block's pieces."""
    limit = form.piece * PLANE**2
    return x if form.pieces == 1 else exact_sum(by_block(x, form), 1, limit)


def _scaled_pieces(weight: MatrixCodes, sides: ProductRows, dots: mx.array) -> mx.array:
    """Return RN(Σ scale·sum) of a block's pieces, cut so that both parts stay below 2²⁴."""
    form = weight.form
    sums = dots.astype(mx.int32)
    if form.shift:
        sums = sums + _shifted(sides, form)
    assert weight.scales is not None
    sums, scales = by_block(sums, form), weight.scales.astype(mx.int32)
    high = sums >> LOW_BITS
    low = sums - (high << LOW_BITS)
    bound = EXACT // form.pieces
    upper, lower = exact_sum(high * scales, 1, bound), exact_sum(low * scales, 1, bound)
    return upper.astype(mx.float32) * float(1 << LOW_BITS) + lower.astype(mx.float32)


def _lows(weight: MatrixCodes, sides: ProductRows) -> mx.array:
    """Return RN(J), J = Σ offset·(sum of the row's integers): float32 [blocks, C, M, N]."""
    assert weight.offsets is not None and sides.sums is not None
    form = weight.form
    sums = by_block(sides.sums, form)
    if form.pieces == 1:  # one offset, which is 1
        return sums[:, 0].astype(mx.float32)
    high = sums >> LOW_BITS
    parts = []
    for part, limit in ((high, 1 << 8), (sums - (high << LOW_BITS), 1 << LOW_BITS)):
        left = part.squeeze(-1).transpose(0, 2, 3, 1)
        right = weight.offsets.squeeze(-2).transpose(0, 2, 1, 3)
        parts.append(exact_matmul(left, right, limit, PLANE // 2))
    return parts[0] * float(1 << LOW_BITS) + parts[1]
