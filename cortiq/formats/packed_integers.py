"""Matrices of integer codes: compressed-tensors, GPTQ, AWQ and MLX, in the layouts that hold them.

An element is scale·(code − zero), or MLX's scale·code + bias, for groups of columns. Up to 4 bits
and without zero points, or where code − zero fits, a code is an integer of `i4b32` or `i8b32`; else
the zero point goes into a minimum, −zero·scale, which is exact for scales of 16 bits.
Sources: the compressed-tensors package (`pack_quantized`, `naive_quantized`), AutoGPTQ's and
GPTQModel's quantised linear layers, AutoAWQ's `gemm` packing, MLX's `quantize`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from cortiq.formats.integer_rows import IntegerRows, integer_matrix
from cortiq.formats.packed_codes import (
    BLOCK,
    FLOAT_TYPES,
    Bytes,
    Codes,
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

BITS = range(2, 9)


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
    group = _group(module, columns, scale.shape[1])
    zero = _compressed_zeros(module, bits, scale.shape, height)
    flat = packed.reshape(height, words)

    def pairs(start: int, stop: int) -> Bytes:
        return np.ascontiguousarray(flat[start:stop]).view(np.uint8)

    def codes(start: int, stop: int) -> Bytes:
        return unpack_codes(pairs(start, stop), bits, columns)

    rows = IntegerRows(bits, columns, group, codes, lambda a, b: scale[a:b], zero, pairs)
    return integer_matrix(module, shape, rows, "weight_g_idx")


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


def modelopt_int4(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read modelopt's `weight` in U8, signed codes of two rows a byte, the upper row's low."""
    pairs = module.array("weight", "U8")
    if pairs.ndim < 2:
        module.fail(f"is {list(pairs.shape)}, which is no matrix")
    how.check_bits(module.stem, 4)
    columns, shape = pairs.shape[-1], (*pairs.shape[:-2], 2 * pairs.shape[-2], pairs.shape[-1])
    scale = _by_row(module, module.scales("weight_scale", *FLOAT_TYPES), prod(shape[:-1]))
    group, flat = _group(module, columns, scale.shape[1]), pairs.reshape(-1, columns)

    def codes(start: int, stop: int) -> Bytes:
        row = np.arange(start, stop)
        upper = (row % 2 == 1)[:, None]
        return np.where(upper, flat[row // 2] >> 4, flat[row // 2] & 15) ^ np.uint8(8)

    rows = IntegerRows(4, columns, group, codes, lambda a, b: scale[a:b], None)
    return module.made(shape, rows.layout, rows.rows)


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
