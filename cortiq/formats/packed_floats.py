"""Matrices of narrow floats: FP8 with any scales, NVFP4, MXFP4 and MXFP8, in integer layouts.

Sources: the OCP 8-bit floating point and microscaling formats; DeepSeek V3's `weight_scale_inv`;
the compressed-tensors package (`nvfp4`, `mxfp4`, `mxfp8`); NVIDIA's modelopt; GPT-OSS's blocks.
"""

from __future__ import annotations

from math import prod

import numpy as np

from cortiq.formats.packed_codes import (
    BLOCK,
    FLOAT_TYPES,
    Bytes,
    Doubles,
    StoredNumbers,
    assemble,
    paired_nibbles,
    spread,
)
from cortiq.formats.packed_tensors import PackedModule, PackedTensor
from cortiq.formats.quantisation import Quantisation

E4M3_UNIT, E2M1_UNIT = 2.0**-9, 0.5
SMALL_BLOCK = 16
FP8_TYPES = ("F8_E4M3", "F8_E5M2")
FP8_SCALES = ("weight_scale_inv", "weight_scale", "scale_inv", "scale")
"""Ends of the names of an FP8 matrix's scales; they multiply, `inv` or not."""


def fp8(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `weight` in FP8, under one scale, one a row, or one a block of rows and columns.

    Numbers of E5M2, whose range of 2³² no integer code has, become floats.
    """
    weight = module.array("weight", *FP8_TYPES)
    if weight.ndim < 2:
        module.fail(f"is {list(weight.shape)}, which is no matrix")
    end = next((end for end in FP8_SCALES if module.has(end)), FP8_SCALES[0])
    scale = module.scales(end, *FLOAT_TYPES, "F8_E8M0", "U8")
    if len(scale.shape) == weight.ndim + 2 and scale.shape[-3] == scale.shape[-1] == 1:
        scale = scale.reshape(*scale.shape[:-3], scale.shape[-2])  # modelopt's, beside each block
    height, columns = weight.shape[-2:]
    module.multiple(columns, BLOCK)
    rows, group = _fp8_blocks(module, how, scale.shape, weight.shape)
    matrices = prod(weight.shape[:-2])
    flat = weight.reshape(-1, columns)
    of_matrix = -(-height // rows)
    table = scale.a_row(matrices * of_matrix)
    if table is None:
        module.fail(f"has scales {list(scale.shape)} for {list(weight.shape)}")

    def of(start: int, stop: int) -> Doubles:
        index = np.arange(start, stop)
        own = table[index // height * of_matrix + index % height // rows]
        return spread(own, columns, group, BLOCK)

    def make(start: int, stop: int) -> Bytes:
        codes = flat[start:stop].view(np.uint8).reshape(stop - start, -1, BLOCK)
        return assemble(codes, of(start, stop) * E4M3_UNIT)

    def floats(start: int, stop: int) -> Bytes:
        halves = flat[start:stop].view(np.uint8).astype(np.uint16) << 8  # E5M2 is their upper byte
        numbers = StoredNumbers(halves, "F16")[:].reshape(stop - start, -1, BLOCK)
        scaled = (numbers * of(start, stop)[..., None]).reshape(stop - start, columns)
        return np.ascontiguousarray(scaled, "<f4").view(np.uint8)

    if module.info("weight").type == "F8_E5M2":
        return module.made(weight.shape, "F32", floats, "FP8 in E5M2")
    return module.made(weight.shape, "e4m3b32", make)


def _fp8_blocks(
    module: PackedModule, how: Quantisation, shape: tuple[int, ...], whole: tuple[int, ...]
) -> tuple[int, int]:
    """Return the rows and columns that share a scale; the edges of a matrix may be ragged."""
    height, columns = whole[-2:]
    if prod(shape) == 1 or (len(whole) > 2 and shape in (whole[:-2], (*whole[:-2], 1, 1))):
        return height, columns
    if shape[-1:] == (height,) or shape[-2:] == (height, 1):
        return 1, columns
    sizes = [
        (rows, group)
        for rows, group in (*how.blocks, (128, 128), (1, BLOCK))
        if shape[-2:] == (-(-height // rows), -(-columns // group))
    ]
    if not sizes:
        module.fail(f"has scales {list(shape)} for a matrix {list(whole)}")
    if sizes[0][1] % BLOCK:
        module.decline(f"has scales of {sizes[0][1]} columns", "blocks of 32·n columns are read")
    return sizes[0]


def nvfp4(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read two E2M1 codes a byte, an E4M3 scale for 16 or 16·n of them, and one scale for all.

    compressed-tensors divides by `weight_global_scale`; modelopt multiplies by `weight_scale_2`.
    A block's scale is the quotient or product of both, rounded to float32 once.
    """
    end = "weight_packed" if module.has("weight_packed") else "weight"
    packed = module.array(end, "U8")
    blocks = module.scales("weight_scale", "F8_E4M3")
    divides = module.has("weight_global_scale")
    whole = module.scales("weight_global_scale" if divides else "weight_scale_2", "F32")
    columns, height = 2 * packed.shape[-1], prod(packed.shape[:-1])
    module.multiple(columns, SMALL_BLOCK)
    groups = blocks.shape[-1] if blocks.shape[:-1] == packed.shape[:-1] else 0
    if not groups or columns % (groups * SMALL_BLOCK):
        module.fail(f"has scales {list(blocks.shape)} for codes {list(packed.shape)}")
    matrices = packed.shape[0] if packed.ndim > 2 else 1
    factors = whole.reshape(-1)[:]
    if whole.size not in (1, matrices) or not np.isfinite(factors).all() or (factors == 0).any():
        module.fail("has no usable scale for all its blocks")
    each = np.repeat(np.broadcast_to(factors, matrices), height // matrices)
    flat, table = packed.view(np.uint8).reshape(height, -1), blocks.reshape(height, -1)

    def make(start: int, stop: int) -> Bytes:
        factor = each[start:stop, None]
        scale = table[start:stop] / factor if divides else table[start:stop] * factor
        each_block = spread(scale * E2M1_UNIT, columns, columns // groups, SMALL_BLOCK)
        return assemble(paired_nibbles(flat[start:stop], SMALL_BLOCK), each_block)

    return module.made((*packed.shape[:-1], columns), "e2m1b16", make)


def mxfp4(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read two E2M1 codes a byte and an exponent for 32 of them, in any of the packings.

    `weight_packed` and `weight_scale` of compressed-tensors, `weight` and `weight_scale` of Quark
    and modelopt, `weight` in I8 and `scale` of DeepSeek, `_blocks` [..., groups, 16] and
    `_scales` of GPT-OSS.
    """
    if module.between == "_":
        packed, exponents = module.array("blocks", "U8"), module.array("scales", "U8")
        if packed.ndim < 3 or packed.shape[-1] != BLOCK // 2:
            module.fail(f"has blocks {list(packed.shape)}")
        packed = packed.reshape(*packed.shape[:-2], -1)
    elif module.has("weight_packed"):
        packed = module.array("weight_packed", "U8")
        exponents = module.array("weight_scale", "U8", "F8_E8M0")
    elif module.has("weight_scale"):
        packed = module.array("weight", "U8")
        exponents = module.array("weight_scale", "U8", "F8_E8M0")
    else:
        packed, exponents = module.array("weight", "I8", "U8"), module.array("scale", "F8_E8M0")
    columns, height = 2 * packed.shape[-1], prod(packed.shape[:-1])
    module.multiple(columns, BLOCK)
    if exponents.shape != (*packed.shape[:-1], columns // BLOCK):
        module.fail(f"has exponents {list(exponents.shape)} for codes {list(packed.shape)}")
    flat = packed.view(np.uint8).reshape(height, -1)
    table = exponents.view(np.uint8).reshape(height, -1)

    def make(start: int, stop: int) -> Bytes:
        parts = [table[start:stop, :, None], paired_nibbles(flat[start:stop], BLOCK)]
        return np.concatenate(parts, axis=2).reshape(stop - start, -1)

    return module.made((*packed.shape[:-1], columns), "MXFP4", make)


def mlx_floats(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read MLX's modes mxfp4, nvfp4 and mxfp8: `weight` in U32 and a byte a group, no biases.

    A group is 32 codes of 4 bits in 4 words, 16 in 2, or 32 codes of 8 bits in 8 words.
    """
    words, exponents = module.array("weight", "U32"), module.array("scales", "U8")
    height, groups = prod(words.shape[:-1]), exponents.shape[-1]
    size = words.shape[-1] // groups if groups else 0
    if exponents.shape[:-1] != words.shape[:-1] or size * groups != words.shape[-1]:
        module.fail(f"has scales {list(exponents.shape)} for words {list(words.shape)}")
    if size not in (2, 4, 8):
        module.fail(f"has groups of {size} words, which no mode of MLX's has")
    block = SMALL_BLOCK if size == 2 else BLOCK
    flat, table = words.reshape(height, -1), exponents.reshape(height, -1)
    unit = E2M1_UNIT if size == 2 else E4M3_UNIT
    numbers = StoredNumbers(table, "F8_E4M3" if size == 2 else "F8_E8M0")

    def make(start: int, stop: int) -> Bytes:
        some = np.ascontiguousarray(flat[start:stop]).view(np.uint8)
        whole = some.reshape(stop - start, -1, BLOCK)
        packed = whole if size == 8 else paired_nibbles(some, block)
        if size == 4:
            parts = [table[start:stop, :, None], packed]
            return np.concatenate(parts, axis=2).reshape(stop - start, -1)
        return assemble(packed, numbers[start:stop] * unit)

    layout = {2: "e2m1b16", 4: "MXFP4", 8: "e4m3b32"}[size]
    return module.made((*words.shape[:-1], groups * block), layout, make)
