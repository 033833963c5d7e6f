"""Matrices of integer codes: compressed-tensors, GPTQ, AWQ and MLX, in the layouts that hold them.

An element is scale·(code − zero), or MLX's scale·code + bias, for groups of columns. Up to 4 bits
and without zero points, or where code − zero fits, a code is an integer of `i4b32` or `i8b32`; else
the zero point goes into a minimum, −zero·scale, which is exact for scales of 16 bits.
Sources: the compressed-tensors package (`pack_quantized`, `naive_quantized`), AutoGPTQ's and
GPTQModel's quantised linear layers, AutoAWQ's `gemm` packing, MLX's `quantize`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from cortiq.formats.packed_codes import (
    BLOCK,
    FLOAT_TYPES,
    Bytes,
    Codes,
    Doubles,
    StoredNumbers,
    assemble,
    nibble_bytes,
    paired_nibbles,
    spread,
    unpack_codes,
    unpack_columns,
)
from cortiq.formats.packed_tensors import PackedModule, PackedTensor
from cortiq.formats.quantisation import Quantisation

Numbers = Callable[[int, int], Doubles]
BITS = range(2, 9)


@dataclass(frozen=True)
class IntegerRows:
    """Rows of unsigned codes of b bits with their groups' scales and zero points.

    Attributes
    ----------
    codes : rows start…stop−1, uint8 [n, K]. scale : float64 [n, G].
    zero : integers [n, G]; None for 2^(b − 1) everywhere.
    pairs : rows of 4-bit codes as bytes that hold neighbours, where they lie so.
    """

    bits: int
    columns: int
    group: int
    codes: Callable[[int, int], Bytes]
    scale: Numbers
    zero: Callable[[int, int], Codes] | None
    pairs: Callable[[int, int], Bytes] | None = None

    @property
    def layout(self) -> str:
        """The layout that holds them exactly."""
        narrow = self.bits < 4 or (self.bits == 4 and self.zero is None)
        wide = self.bits < 8 or self.zero is None
        if narrow:
            return "i4b32"
        if self.bits == 4:
            return "i4b32m"
        return "i8b32" if wide else "i8b32m"

    def rows(self, start: int, stop: int) -> Bytes:
        """Return rows of blocks."""
        scale, minimum, layout = self.scale(start, stop), None, self.layout
        low = 0 if self.bits == 4 else 128
        if layout.endswith("m"):
            assert self.zero is not None
            minimum = self._spread((low - self.zero(start, stop)) * scale)
        return assemble(self._packed(start, stop), self._spread(scale), minimum)

    def _packed(self, start: int, stop: int) -> Bytes:
        """Return codes as the layout keeps them: [n, blocks, bytes of a block's codes]."""
        narrow = self.layout.startswith("i4")
        if self.bits == 4:
            if self.pairs is not None:
                return paired_nibbles(self.pairs(start, stop), BLOCK)
            return nibble_bytes(self.codes(start, stop), BLOCK)
        codes = self.codes(start, stop)
        if self.bits == 8:
            return (codes ^ np.uint8(128)).reshape(stop - start, -1, BLOCK)
        # Modulo 256: what is left fits the layout's codes.
        less: Any = np.uint8((1 << (self.bits - 1)) - (8 if narrow else 0) & 255)
        if self.zero is not None:
            zeros = self.zero(start, stop) - (8 if narrow else 0)
            less = np.repeat(zeros.astype(np.uint8), self.group, axis=1)[:, : self.columns]
        found = codes - less
        return nibble_bytes(found, BLOCK) if narrow else found.reshape(stop - start, -1, BLOCK)

    def _spread(self, values: Doubles) -> Doubles:
        return spread(values, self.columns, self.group, BLOCK)


def _group(module: PackedModule, columns: int, groups: int) -> int:
    """Return the columns of a group, checked."""
    group = columns // groups if groups else 0
    if not group or columns % groups:
        module.fail(f"has {groups} scales for rows of {columns} columns")
    if groups > 1 and group % BLOCK:
        hint = f"groups of 32, 64 or 128 columns, or one a row, can be read; not of {group}"
        module.decline(f"has groups of {group} columns", hint)
    module.multiple(columns, BLOCK)
    return group


def compressed_pack(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `weight_packed`, I32 [N, words], of compressed-tensors' pack-quantized."""
    packed = module.array("weight_packed", "I32")
    sizes = module.array("weight_shape", "I64", "I32")
    shape = tuple(int(n) for n in np.asarray(sizes).reshape(-1)[:4])
    if packed.ndim < 2 or len(shape) != packed.ndim or shape[:-1] != packed.shape[:-1]:
        module.fail(f"packs {list(packed.shape)} words of a matrix {list(shape)}")
    columns, words = shape[-1], packed.shape[-1]
    bits = next((b for b in BITS if -(-columns * b // 32) == words), 0)
    if not bits:
        module.fail(f"packs {columns} columns in {words} words")
    how.check_bits(module.stem, bits)
    height = prod(shape[:-1])
    scale = _by_row(module, module.scales("weight_scale", *FLOAT_TYPES), height)
    group = _order(module, columns, _group(module, columns, scale.shape[1]))
    zero = _compressed_zeros(module, bits, scale.shape, height)
    flat = packed.reshape(height, words)

    def pairs(start: int, stop: int) -> Bytes:
        return np.ascontiguousarray(flat[start:stop]).view(np.uint8)

    def codes(start: int, stop: int) -> Bytes:
        return unpack_codes(pairs(start, stop), bits, columns)

    rows = IntegerRows(bits, columns, group, codes, lambda a, b: scale[a:b], zero, pairs)
    return module.made(shape, rows.layout, rows.rows)


def _by_row(module: PackedModule, scale: StoredNumbers, height: int) -> StoredNumbers:
    """Return scales [rows, groups] of a matrix that has one, one a row, or one a group."""
    table = scale.a_row(height)
    if table is None:
        module.fail(f"has {scale.size} scales for {height} rows")
    return table


def _compressed_zeros(
    module: PackedModule, bits: int, shape: tuple[int, ...], height: int
) -> Callable[[int, int], Codes] | None:
    """Return zero points as unsigned codes, packed down the columns or signed bytes."""
    if not module.has("weight_zero_point"):
        return None
    points = module.array("weight_zero_point", "I32", "I8")
    if points.dtype.itemsize == 1:
        signed = points.reshape(shape).astype(np.int16) + (1 << (bits - 1))
        return lambda start, stop: signed[start:stop]
    if points.ndim != 2 or points.shape != (-(-height * bits // 32), shape[1]):
        module.fail(f"has zero points {list(points.shape)} for scales {list(shape)}")
    words = np.ascontiguousarray(points.T)
    return lambda start, stop: unpack_columns(words, bits, start, stop).T.astype(np.int16)


def _order(module: PackedModule, columns: int, group: int) -> int:
    """Return the columns of a group; refuse groups that are not runs of columns."""
    if module.has("weight_g_idx") and not _in_order(module, "weight_g_idx", columns, group):
        module.decline(
            "has groups that are not runs of columns (actorder)",
            "take a checkpoint without it, or with static groups",
        )
    return group


def _in_order(module: PackedModule, end: str, columns: int, group: int) -> bool:
    """Return whether column k is in group ⌊k/group⌋, by the tensor that says so."""
    index = module.array(end, "I32", "I64").reshape(-1)
    if len(index) != columns:
        module.fail(f"has {end} of {len(index)} columns, not {columns}")
    return bool((index == np.arange(columns) // group).all()) or not index.any()


def compressed_int8(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `weight` in I8 with `weight_scale`: compressed-tensors' int-quantized."""
    weight = module.array("weight", "I8")
    how.check_bits(module.stem, 8, most=True)
    columns, height = weight.shape[-1], prod(weight.shape[:-1])
    scale = _by_row(module, module.scales("weight_scale", *FLOAT_TYPES), height)
    group = _group(module, columns, scale.shape[1])
    flat, zero = weight.reshape(height, columns), _compressed_zeros(module, 8, scale.shape, height)

    def codes(start: int, stop: int) -> Bytes:
        return flat[start:stop].view(np.uint8) ^ np.uint8(128)

    rows = IntegerRows(8, columns, group, codes, lambda a, b: scale[a:b], zero)
    return module.made(weight.shape, rows.layout, rows.rows)


def mlx_affine(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read MLX's `weight` in U32 with `scales` and `biases`; the configuration says the bits."""
    words = module.array("weight", "U32")
    scale, bias = (module.scales(end, *FLOAT_TYPES) for end in ("scales", "biases"))
    bits, group = how.bits_and_group(module.stem)
    height, groups = prod(words.shape[:-1]), scale.shape[-1]
    columns = groups * group
    if bits not in BITS or words.shape[-1] * 32 != columns * bits or bias.shape != scale.shape:
        module.fail(
            f"has {words.shape[-1]} words and {groups} scales a row, which are not {bits} bits in "
            f"groups of {group}"
        )
    if prod(scale.shape[:-1]) != height:
        module.fail(f"has scales {list(scale.shape)} for words {list(words.shape)}")
    _group(module, columns, groups)
    flat, scale, bias = words.reshape(height, -1), *(x.reshape(height, -1) for x in (scale, bias))
    layout, low = ("i4b32m" if bits <= 4 else "i8b32m"), (128 if bits == 8 else 0)

    def make(start: int, stop: int) -> Bytes:
        some = np.ascontiguousarray(flat[start:stop]).view(np.uint8)
        if bits == 4:
            packed = paired_nibbles(some, BLOCK)
        else:
            codes = unpack_codes(some, bits, columns) ^ np.uint8(low)
            rest = codes.reshape(stop - start, -1, BLOCK)
            packed = nibble_bytes(codes, BLOCK) if bits < 4 else rest
        d, m = scale[start:stop], bias[start:stop] + low * scale[start:stop]
        return assemble(packed, *(spread(values, columns, group, BLOCK) for values in (d, m)))

    return module.made((*words.shape[:-1], columns), layout, make)
