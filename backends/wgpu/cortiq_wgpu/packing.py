"""Weights in the forms that kernels read, in parts that a buffer holds.

Codes are stored in groups of 32 columns: four words of nibbles (word k holds bytes of columns
4k…4k+3 in its low nibbles, and 16 columns on in its high ones), or eight words of bytes. Beside
them lie the fifth bits of 5-bit codes (a word a group: bit 8j+i is column 4i+j), or the top two of
6-bit ones (two words: bits 8j+2i), scales, minima, and bytes of sub-scales and offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.numerics.groupquants import WIDE_LAYOUTS, bytes_of_wide
from cortiq.numerics.layouts import Weight, floats, unpack
from cortiq.numerics.unpacked_weights import UnpackedWeight

GROUP = 32
ZERO_POINTS = {"Q4_0": 8, "Q5_0": 16, "Q3_K": 4, "Q6_K": 32, "i4b32": 8}
WIDTHS = {
    "Q4_0": 4, "Q4_1": 4, "Q2_K": 4, "Q3_K": 4, "Q4_K": 4, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5,
    "Q6_K": 6, "i4b32": 4, "i4b32m": 4,
}  # fmt: skip
"""Bits of a code on the device; 8 for all others."""
MOST_LINES = 65535
"""Lines of floats in a buffer, and fours of others: each is a workgroup of some kernel, and so many
there are in one direction."""
PACK_BYTES = 1 << 24
"""Codes unpacked at a time."""

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


@dataclass(frozen=True)
class MatrixSlice:
    """Rows start…stop−1 of a matrix on the device.

    Attributes
    ----------
    codes, side : buffers. places : in words, where each stretch of `side` begins.
    """

    start: int
    stop: int
    codes: Any
    side: Any
    places: dict[str, int]


@dataclass(frozen=True)
class WgpuMatrix:
    """A weight [height, width] on the device.

    Attributes
    ----------
    base : its first row among those of `parts`, which other weights may lie in, too.
    """

    form: CodePacking
    height: int
    width: int
    parts: tuple[MatrixSlice, ...]
    base: int = 0

    @property
    def groups(self) -> int:
        """Groups of 32 columns."""
        return -(-self.width // GROUP)


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


def _grouped(codes: np.ndarray) -> np.ndarray:
    """Reshape [rows, K] to bytes [rows, groups, 8, 4], zeros behind."""
    rows, width = codes.shape
    padded = np.zeros((rows, -(-width // GROUP) * GROUP), np.uint8)
    padded[:, :width] = codes.view(np.uint8)
    return padded.reshape(rows, -1, 8, 4)


def _words(rows: np.ndarray) -> Words:
    """View bytes [rows, …] as words [rows, n], zeros behind."""
    flat = rows.reshape(len(rows), -1)
    padded = np.zeros((len(rows), -(-flat.shape[1] // 4) * 4), np.uint8)
    padded[:, : flat.shape[1]] = flat.view(np.uint8)
    return padded.view(np.uint32)


def _packed(form: CodePacking, fields: UnpackedWeight) -> tuple[Words, dict[str, Words]]:
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
        return np.concatenate([_words(_grouped(plane)) for plane in planes], axis=1), side
    if form.wide:
        return _words(_grouped(bytes_of_wide(form.wide, fields.codes))), side
    if form.bits == 8:
        return _words(_grouped(fields.codes.astype(np.int8))), side
    grouped = _grouped((fields.codes + np.int8(form.zero)).astype(np.int8))
    if form.bits == 5:
        shifts = np.arange(8, dtype=np.uint8)[:, None]
        fifth = (grouped >> 4 << shifts).sum(axis=2, dtype=np.uint8)
        side["high"] = _words(fifth)
    elif form.bits == 6:
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        halves = (grouped >> 4).reshape(*grouped.shape[:2], 2, 4, 4)
        side["high"] = _words((halves << shifts).sum(axis=3, dtype=np.uint8))
    low = grouped & 15
    return _words(low[:, :, :4] | (low[:, :, 4:] << 4)), side


class Uploader:
    """Puts weights on a device, a matrix at a time.

    Parameters
    ----------
    limit : bytes of a buffer; larger matrices are split by rows.
    """

    def __init__(self, gpu: Any, limit: int) -> None:
        self.gpu, self.limit = gpu, limit

    def joined(self, weights: Mapping[str, Weight]) -> dict[str, WgpuMatrix] | None:
        """Upload weights of one format to one buffer, in order; None if they do not fit."""
        forms, rows = set(), []
        for name, weight in weights.items():
            if weight.layout.kind == "float":
                return None
            fields = unpack(weight.rows(0, 1), name)
            forms.add((form_of(weight, fields), weight.shape[1]))
            codes, side = _packed(form_of(weight, fields), fields)
            rows.append(max(codes.shape[1], sum(words.shape[1] for words in side.values())))
        height = sum(weight.shape[0] for weight in weights.values())
        too_large = 4 * max(rows) * height > self.limit or height > 4 * MOST_LINES
        if len(forms) != 1 or too_large:
            return None
        ((form, width),) = forms
        part = self._part(weights, form, (0, height))
        bases = np.cumsum([0, *(weight.shape[0] for weight in weights.values())]).tolist()
        return {
            name: WgpuMatrix(form, weight.shape[0], width, (part,), base)
            for (name, weight), base in zip(weights.items(), bases, strict=False)
        }

    def matrix(self, weight: Weight, name: str) -> WgpuMatrix:
        """Upload a weight's codes and scales, or its floats."""
        height, width = weight.shape
        if weight.layout.kind == "float":
            step = min(MOST_LINES, max(1, self.limit // (4 * width)))
            parts = [
                MatrixSlice(a, b, self.gpu.uploaded(floats(weight.rows(a, b), name)), None, {})
                for a, b in _spans(height, step)
            ]
            return WgpuMatrix(FLOATS, height, width, tuple(parts))
        form = form_of(weight, unpack(weight.rows(0, 1), name))
        codes, side = _packed(form, unpack(weight.rows(0, 1), name))
        each = max(codes.shape[1], sum(words.shape[1] for words in side.values()))
        spans = _spans(height, min(4 * MOST_LINES, max(1, self.limit // (4 * each))))
        parts = [self._part({name: weight}, form, span) for span in spans]
        return WgpuMatrix(form, height, width, tuple(parts))

    def _part(
        self, weights: Mapping[str, Weight], form: CodePacking, span: tuple[int, int]
    ) -> MatrixSlice:
        """Pack and upload rows of a matrix, or all of several, some at a time."""
        start, stop = span
        codes, side = None, None
        places: dict[str, int] = {}
        for a, fields in self._pieces(weights, span):
            words, stretches = _packed(form, fields)
            if codes is None:
                codes = self.gpu.buffer(4 * words.shape[1] * (stop - start))
                end = 0
                for stretch, beside in stretches.items():
                    places[stretch] = end
                    end += beside.shape[1] * (stop - start)
                side = self.gpu.buffer(4 * end)
            self.gpu.upload(codes, 4 * a * words.shape[1], words)
            for stretch, beside in stretches.items():
                at = places[stretch] + a * beside.shape[1]
                self.gpu.upload(side, 4 * at, beside)
        return MatrixSlice(start, stop, codes, side, places)

    def _pieces(
        self, weights: Mapping[str, Weight], span: tuple[int, int]
    ) -> Iterator[tuple[int, UnpackedWeight]]:
        """Yield rows to pack, a few at a time, and their place in the part."""
        place = 0
        for name, weight in weights.items():
            first, last = span if len(weights) == 1 else (0, weight.shape[0])
            step = max(1, PACK_BYTES // max(1, weight.shape[1]))
            for a, b in _spans(last - first, step):
                yield place + a, unpack(weight.rows(first + a, first + b), name)
            place += last - first


def _spans(count: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, step):
        yield start, min(start + step, count)
