"""Weights in the forms that kernels read.

Codes are stored in groups of 32 columns: four words of nibbles (word k holds bytes of columns
4k…4k+3 in its low nibbles, and 16 columns on in its high ones), or eight words of bytes. Beside
them lie the fifth bits of 5-bit codes (a word a group: bit 8j+i is column 4i+j), or the top two of
6-bit ones (two words: bits 8j+2i), scales, minima, and bytes of sub-scales and offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortiq.numerics.groupquants import WIDE_LAYOUTS, bytes_of_wide
from cortiq.numerics.layouts import Weight
from cortiq.numerics.unpacked_weights import UnpackedWeight

GROUP = 32
ZERO_POINTS = {"Q4_0": 8, "Q5_0": 16, "Q3_K": 4, "Q6_K": 32, "i4b32": 8}
WIDTHS = {
    "Q4_0": 4, "Q4_1": 4, "Q2_K": 4, "Q3_K": 4, "Q4_K": 4, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5,
    "Q6_K": 6, "i4b32": 4, "i4b32m": 4,
}  # fmt: skip
"""Bits of a code on the device; 8 for all others."""
Words = np.ndarray


@dataclass(frozen=True)
class CodePacking:
    """Format of a layout's codes on the device.

    Attributes
    ----------
    bits : 4, 5, 6 or 8, or 32 for plain floats. zero : subtracted from stored codes.
    planes : 2 for w16. block : columns under one scale, 0 for the row. sub : columns of a
    sub-scale or offset, 0 without. scaled : sub-scales? minima : minima? offset : offsets?
    wide : the layout of codes of more than 8 bits, which bytes stand for; or nothing.
    """

    bits: int
    zero: int = 0
    planes: int = 1
    block: int = 0
    sub: int = 0
    scaled: bool = False
    minima: bool = False
    offset: bool = False
    wide: str = ""

    @property
    def streams(self) -> bool:
        """Whether there are kernels for few rows whose words are read side by side."""
        return self.bits < 32 and self.block != 16 and not self.wide


FLOATS = CodePacking(32)


def form_of(weight: Weight, fields: UnpackedWeight) -> CodePacking:
    """Return the format of a layout with codes."""
    name = weight.layout.name
    block = 0 if fields.block >= weight.shape[1] and weight.layout.kind == "parts" else fields.block
    return CodePacking(
        bits=WIDTHS.get(name, 8),
        zero=ZERO_POINTS.get(name, 0),
        planes=2 if name == "w16" else 1,
        block=block,
        sub=fields.sub if fields.sub_scales is not None or fields.offsets is not None else 0,
        scaled=fields.sub_scales is not None,
        minima=fields.minimum is not None,
        offset=fields.offsets is not None,
        wide=name if name in WIDE_LAYOUTS else "",
    )


def _words(rows: np.ndarray, each: int = 4) -> Words:
    """View bytes [rows, …] as words [rows, n]; zeros up to a multiple of `each` bytes."""
    flat = rows.reshape(len(rows), -1)
    if flat.shape[1] % each or not flat.flags.c_contiguous:
        padded = np.zeros((len(rows), -(-flat.shape[1] // each) * each), np.uint8)
        padded[:, : flat.shape[1]] = flat.view(np.uint8)
        flat = padded
    return flat.view(np.uint32)


def _nibbles(words: Words) -> Words:
    """Put the low nibbles of words [rows, groups, 8] together: [rows, groups·4]."""
    packed = words[..., 4:] & np.uint32(0x0F0F0F0F)
    packed <<= np.uint32(4)
    packed |= words[..., :4] & np.uint32(0x0F0F0F0F)
    return packed.reshape(len(words), -1)


def _above(words: Words, bits: int) -> Words:
    """Put the bits above the nibbles of words [rows, groups, 8] together: one or two of a code."""
    mask, count = (0x01010101, 8) if bits == 1 else (0x03030303, 4)
    parts = words.reshape(len(words), -1, count) >> np.uint32(4)
    parts &= np.uint32(mask)
    parts <<= np.arange(0, 8, bits, dtype=np.uint32)
    return np.bitwise_or.reduce(parts, axis=2)


def packed(form: CodePacking, fields: UnpackedWeight) -> tuple[Words, dict[str, Words]]:
    """Pack words of codes [rows, n], and those of each stretch beside them."""
    side: dict[str, Words] = {"scale": np.ascontiguousarray(fields.scale).view(np.uint32)}
    if fields.minimum is not None:
        side["minimum"] = np.ascontiguousarray(fields.minimum).view(np.uint32)
    if fields.sub_scales is not None:
        side["sub_scale"] = _words(fields.sub_scales.astype(np.int8))
    if fields.offsets is not None:
        side["offset"] = _words(fields.offsets.astype(np.int8))
    if form.planes == 2:
        wide = fields.codes.astype(np.int32)
        high = (wide + 128) >> 8
        planes = [high.astype(np.int8), (wide - (high << 8)).astype(np.int8)]
        return np.concatenate([_words(plane, GROUP) for plane in planes], axis=1), side
    if form.wide:
        return _words(bytes_of_wide(form.wide, fields.codes), GROUP), side
    codes = fields.codes.astype(np.int8, copy=False)
    if form.bits == 8:
        return _words(codes, GROUP), side
    words = _words(codes + np.int8(form.zero) if form.zero else codes, GROUP)
    words = words.reshape(len(codes), -1, 8)
    if form.bits > 4:
        side["high"] = _above(words, form.bits - 4)
    return _nibbles(words), side
