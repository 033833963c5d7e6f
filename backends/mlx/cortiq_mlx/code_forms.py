"""Forms of a weight's codes for exact float32 matmuls.

Codes stay int8, by *pieces*: runs of columns that one exact matmul adds up, with the outputs along
the last axis. A piece is a sub-block of a GGUF layout, or up to 1024 columns of a row under one
scale. Small codes meet the row's whole 16-bit integers at once, since 32 products of 4-bit codes
and 15-bit integers stay below 2²⁴; codes of 8 bits meet its two planes, one matmul for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cortiq.numerics.unpacked_weights import UnpackedWeight, fold
from cortiq_mlx.exact_sums import EXACT, PLANE
from cortiq_mlx.library import mx
from cortiq_mlx.quantised_rows import LARGEST_Q

PIECE = EXACT // PLANE**2
"""Columns that a product of two int8 planes may add up: 1024."""


@dataclass(frozen=True)
class CodeForm:
    """The shape and the bounds of a weight's codes; parts of one matrix have the same.

    Attributes
    ----------
    piece : columns of a piece. pieces : pieces of a block.
    planes : int8 planes of a code, 1 to 3.
    limit : largest magnitude of a stored code. shift : what was subtracted from every code.
    whole : whether codes meet 16-bit integers, not the planes of a row.
    scaled : whether a piece has an integer scale of its own. low : whether a block has a minimum.
    """

    piece: int
    pieces: int
    planes: int
    limit: int
    shift: int
    whole: bool
    scaled: bool
    low: bool


def narrowed(fields: UnpackedWeight) -> UnpackedWeight:
    """Multiply sub-scales in where codes are too large to be met in sub-blocks."""
    if fields.sub_scales is None or fields.minimum is not None:
        return fields
    lowest, highest = int(fields.codes.min(initial=0)), int(fields.codes.max(initial=0))
    if fields.sub * max(-lowest, highest + 1) * LARGEST_Q <= EXACT:
        return fields
    codes = fold(fields)
    return UnpackedWeight(codes.codes, codes.scale, codes.block)


def form_of(fields: UnpackedWeight, width: int) -> CodeForm:
    """Return the cheapest form that is exact for these codes."""
    block = min(fields.block, width)
    lowest, highest = int(fields.codes.min(initial=0)), int(fields.codes.max(initial=0))
    reach = max(-lowest, highest + 1)
    bits = 1 << (reach - 1).bit_length()  # what the layout's codes can be, not what these are
    piece = fields.sub or block
    shift = bits // 2 if lowest >= 0 and bits * LARGEST_Q * piece > EXACT else 0
    limit = bits - shift
    scaled, low = fields.sub_scales is not None, fields.minimum is not None
    if limit <= PLANE and piece * limit * LARGEST_Q <= EXACT:
        return CodeForm(piece, block // piece, 1, limit, shift, True, scaled, low)
    if fields.sub:
        raise AssertionError(f"codes up to {limit} in sub-blocks of {fields.sub}")
    pieces = -(-block // PIECE)
    count = next(n for n in (1, 2, 3) if reach <= PLANE << (8 * (n - 1)))
    return CodeForm(-(-block // pieces), pieces, count, PLANE, 0, False, False, low)


@dataclass(frozen=True)
class MatrixCodes:
    """A stack of `count` matrices [height, width] in a form.

    Attributes
    ----------
    codes : planes, each int8 [blocks·pieces, count, piece, height].
    scale : float32 [blocks, count, 1, height]. minimum : alike, or None.
    scales, offsets : int8 [blocks, pieces, count, 1, height], of pieces, or None.
    A weight on the device has one more axis in front, of its parts along the outputs.
    """

    form: CodeForm
    codes: tuple[mx.array, ...]
    scale: mx.array
    minimum: mx.array | None = None
    scales: mx.array | None = None
    offsets: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """Return all arrays, in the order of the fields."""
        others = (self.scale, self.minimum, self.scales, self.offsets)
        return [*self.codes, *(array for array in others if array is not None)]

    def mapped(self, function: Callable[[mx.array], mx.array]) -> MatrixCodes:
        """Apply the function to each array, in the order of the fields."""

        def where_there(array: mx.array | None) -> mx.array | None:
            return None if array is None else function(array)

        return MatrixCodes(
            self.form,
            tuple(map(function, self.codes)),
            function(self.scale),
            where_there(self.minimum),
            where_there(self.scales),
            where_there(self.offsets),
        )

    def matrix(self, at: int) -> MatrixCodes:
        """Return one matrix of the stack."""
        return self.mapped(lambda x: x[..., at : at + 1, :, :])

    def picked(self, index: mx.array) -> MatrixCodes:
        """Gather the matrices of an index."""
        return self.mapped(lambda x: mx.take(x, index, axis=x.ndim - 3))
