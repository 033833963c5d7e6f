"""Every weight layout as data, and weights as raw bytes that are decoded when they are needed.

A `Weight` keeps the file's own codes (usually memory-mapped); row slices, single experts of a stack
and tied tensors are views of it. `decode` gives the integers that the matmul is defined on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError
from cortiq.numerics import blockquants, gridquants, groupquants, kquants
from cortiq.numerics.contract import (
    F32,
    LARGEST_BITS,
    LARGEST_EXPONENT,
    Floats,
    magnitude_bits,
    snap,
)
from cortiq.numerics.parts_by_rows import PartsByRows
from cortiq.numerics.quantise import from_planes
from cortiq.numerics.unpacked_weights import (
    Bytes,
    Codes,
    UnpackedWeight,
    bfloat_to_float,
    fold,
    half_to_float,
)


@dataclass(frozen=True)
class Layout:
    """The memory layout of a weight [N, K].

    Attributes
    ----------
    name : as files and users write it.
    kind : "float" (exact values), "blocks" (scale and codes interleaved in one part, as in GGUF)
        or "parts" (codes and scales in separate arrays).
    block : elements of a row that share one float scale; 0 means the whole row, or a float layout.
    block_bytes : bytes of one block; for float layouts those of one element; 0 for "parts".
    ggml_type : the type number in GGUF files, or None.
    unpack : raw blocks [N, blocks, block_bytes] to `UnpackedWeight`, for "blocks".
    words : type of the values, or of a block's scales: a key of `WORDS`.
    scales_at : bytes of a block at which its scales, and minima, lie; none if they lie apart.
    """

    name: str
    kind: str
    block: int
    block_bytes: int
    ggml_type: int | None = None
    unpack: Callable[[Bytes], UnpackedWeight] | None = None
    words: str = "f32"
    scales_at: tuple[int, ...] = ()

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of K = `columns`; `FormatError` if K is not whole blocks."""
        elements = self.block or 1
        if self.kind == "parts":
            raise ValueError(f"{self.name} keeps its parts in separate arrays")
        if columns % elements:
            raise FormatError(f"{self.name} rows hold whole blocks of {elements}, not {columns}")
        return columns // elements * self.block_bytes


WORDS: Mapping[str, tuple[str, int]] = {
    "f32": ("<i4", int(LARGEST_BITS)),
    "bf16": ("<i2", int(LARGEST_BITS) >> 16),
    "f16": ("<i2", 31 << 10),
    "e8m0": ("u1", 128 + LARGEST_EXPONENT),
}
"""Types of numbers in files: the integer that holds one, and the smallest, sign aside, of a number
of 2⁵⁰ or more, an infinity or a NaN."""


def _blocks(
    name: str, ggml_type: int, size: int, unpack: Callable[[Bytes], UnpackedWeight], *scales_at: int
) -> Layout:
    block = kquants.BLOCK if size > 40 else blockquants.BLOCK
    words = "e8m0" if name == "MXFP4" else "f16"
    return Layout(name, "blocks", block, size, ggml_type, unpack, words, scales_at)


F32_LAYOUT = Layout("F32", "float", 0, 4, 0)
F16_LAYOUT = Layout("F16", "float", 0, 2, 1, words="f16")
BF16_LAYOUT = Layout("BF16", "float", 0, 2, 30, words="bf16")
W8 = Layout("w8", "parts", 0, 0)
W16 = Layout("w16", "parts", 0, 0)
W8B256 = Layout("w8b256", "parts", 256, 0)

_GGUF = (
    F32_LAYOUT,
    F16_LAYOUT,
    _blocks("Q4_0", 2, 18, blockquants.q4_0, 0),
    _blocks("Q4_1", 3, 20, blockquants.q4_1, 0, 2),
    _blocks("Q5_0", 6, 22, blockquants.q5_0, 0),
    _blocks("Q5_1", 7, 24, blockquants.q5_1, 0, 2),
    _blocks("Q8_0", 8, 34, blockquants.q8_0, 0),
    _blocks("Q2_K", 10, 84, kquants.q2_k, 80, 82),
    _blocks("Q3_K", 11, 110, kquants.q3_k, 108),
    _blocks("Q4_K", 12, 144, kquants.q4_k, 0, 2),
    _blocks("Q5_K", 13, 176, kquants.q5_k, 0, 2),
    _blocks("Q6_K", 14, 210, kquants.q6_k, 208),
    _blocks("IQ4_NL", 20, 18, blockquants.iq4_nl, 0),
    BF16_LAYOUT,
    _blocks("MXFP4", 39, 17, blockquants.mxfp4, 0),
    _blocks("IQ2_XXS", 16, 66, gridquants.iq2_xxs, 0),
    _blocks("IQ2_XS", 17, 74, gridquants.iq2_xs, 0),
    _blocks("IQ3_XXS", 18, 98, gridquants.iq3_xxs, 0),
    _blocks("IQ1_S", 19, 50, gridquants.iq1_s, 0),
    _blocks("IQ3_S", 21, 110, gridquants.iq3_s, 0),
    _blocks("IQ2_S", 22, 82, gridquants.iq2_s, 0),
    _blocks("IQ4_XS", 23, 136, gridquants.iq4_xs, 0),
    _blocks("IQ1_M", 29, 56, gridquants.iq1_m),  # its scale lies in four places
    _blocks("TQ1_0", 34, 54, gridquants.tq1_0, 52),
    _blocks("TQ2_0", 35, 66, gridquants.tq2_0, 64),
)

_GROUPED = (
    Layout("i4b32", "blocks", 32, 20, None, groupquants.i4b32, "f32", (0,)),
    Layout("i4b32m", "blocks", 32, 24, None, groupquants.i4b32m, "f32", (0, 4)),
    Layout("i8b32", "blocks", 32, 36, None, groupquants.i8b32, "f32", (0,)),
    Layout("i8b32m", "blocks", 32, 40, None, groupquants.i8b32m, "f32", (0, 4)),
    Layout("e2m1b16", "blocks", 16, 12, None, groupquants.e2m1b16, "f32", (0,)),
    Layout("e4m3b32", "blocks", 32, 36, None, groupquants.e4m3b32, "f32", (0,)),
    Layout("nf4b32", "blocks", 32, 20, None, groupquants.nf4b32, "f32", (0,)),
    Layout("fp4b32", "blocks", 32, 20, None, groupquants.fp4b32, "f32", (0,)),
)

LAYOUTS: Mapping[str, Layout] = {
    **{layout.name: layout for layout in (*_GGUF, W8, W16, W8B256, *_GROUPED)},
    "f32": F32_LAYOUT,
}
"""Every layout by name; our `f32` is GGUF's F32."""
GGML_LAYOUTS: Mapping[int, Layout] = {
    layout.ggml_type: layout for layout in _GGUF if layout.ggml_type is not None
}
"""Layouts by the type number in GGUF files."""


@dataclass(frozen=True)
class Weight:
    """A weight [N, K] as raw arrays, each with N rows.

    parts : "float" and "blocks" layouts: {"raw": uint8 [N, row bytes]}; w8 and w8b256: {"codes":
        int8 [N, K], "scale": float32 [N, ⌈K/block⌉]}; w16: {"hi": int8, "lo": int8, "scale"}.
    origin : for messages: the number, in the whole weight, of the first row, or of every row.
    whole : the weight that these are the first rows of, for backends that keep it and need no copy.
    """

    layout: Layout
    shape: tuple[int, int]
    parts: Mapping[str, npt.NDArray[Any]]
    origin: npt.NDArray[np.integer] | int = 0
    whole: Weight | None = field(default=None, repr=False, compare=False)

    @staticmethod
    def from_bytes(layout: Layout, raw: Bytes, shape: tuple[int, int]) -> Weight:
        """Take rows of raw bytes (a flat or [N, row bytes] uint8 array); nothing is copied.

        Raises `FormatError` if the bytes are not exactly N rows of K elements.
        """
        rows, columns = shape
        row_bytes = layout.row_bytes(columns)
        if raw.size != rows * row_bytes:
            raise FormatError(
                f"{raw.size} bytes, but {layout.name} [{rows}, {columns}] takes {rows * row_bytes}"
            )
        return Weight(layout, shape, {"raw": raw.reshape(rows, row_bytes)})

    @staticmethod
    def from_floats(values: Floats) -> Weight:
        """Make a float32 matrix [N, K] in the layout `f32`."""
        values = np.ascontiguousarray(values, "<f4")
        rows, columns = values.shape
        return Weight.from_bytes(F32_LAYOUT, values.view(np.uint8), (rows, columns))

    def rows(self, start: int, stop: int) -> Weight:
        """Return rows start…stop−1 as views: a slice, or expert e of a stack at e·N…(e+1)·N."""
        if not 0 <= start <= stop <= self.shape[0]:
            raise ValueError(f"rows {start}:{stop} of a weight of {self.shape[0]} rows")
        if isinstance(self.parts, PartsByRows) and self.parts.in_passing:
            parts = self.parts.rows(start, stop)
        else:
            parts = {name: part[start:stop] for name, part in self.parts.items()}
        origin = self.origin
        origin = origin[start:stop] if isinstance(origin, np.ndarray) else origin + start
        return Weight(self.layout, (stop - start, self.shape[1]), parts, origin)

    def once(self) -> Weight:
        """Return the weight for one pass over its rows (`rows`), of which nothing is kept."""
        if not isinstance(self.parts, PartsByRows):
            return self
        return replace(self, parts=self.parts.once())

    def take(self, ids: npt.NDArray[np.integer]) -> Weight:
        """Copy the rows named by `ids`."""
        parts = {name: part[ids] for name, part in self.parts.items()}
        origin = self.origin[ids] if isinstance(self.origin, np.ndarray) else ids + self.origin
        return Weight(self.layout, (len(ids), self.shape[1]), parts, origin)

    def row_numbers(self) -> npt.NDArray[np.integer]:
        """Return each row's number in the whole weight, for messages."""
        if isinstance(self.origin, np.ndarray):
            return self.origin
        return np.arange(self.origin, self.origin + self.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        if isinstance(self.parts, PartsByRows) and self.parts.in_passing and self.shape[0]:
            return self.shape[0] * self.rows(0, 1).nbytes
        return sum(part.nbytes for part in self.parts.values())


def canonical_weights(values: Floats, weight: Weight, name: str) -> Floats:
    """Snap what a file gives as floats (values or scales of `weight`); `FormatError` names the
    tensor and the row if one of them is infinite, NaN, or of magnitude 2⁵⁰ or more.
    """
    bits = magnitude_bits(values)
    if bits.max(initial=0) >= LARGEST_BITS:
        first = np.argwhere(bits >= LARGEST_BITS)[0]
        row, value = weight.row_numbers()[first[0]], values[tuple(first)]
        raise FormatError(
            f"row {row} holds {value}, which is not a valid weight",
            where=name,
            hint="The file is damaged or was converted from a diverged model; fetch it again.",
        )
    return snap(values)


def raw_fields(weight: Weight) -> UnpackedWeight:
    """Return codes and scales as the layout stores them, with scales not yet checked."""
    layout, parts = weight.layout, weight.parts
    if layout.kind == "float":
        raise ValueError(f"{layout.name} has no codes; use floats() and matmul_f32()")
    if layout.unpack is not None:
        rows, columns = weight.shape
        blocks = parts["raw"].reshape(rows, columns // layout.block, layout.block_bytes)
        return layout.unpack(blocks)
    block = layout.block or weight.shape[1]
    codes = from_planes(parts["hi"], parts["lo"]) if layout is W16 else parts["codes"]
    return UnpackedWeight(codes, parts["scale"], block)


def unpack(weight: Weight, name: str = "weight") -> UnpackedWeight:
    """Unpack small codes, integer sub-scales and canonical float scales, for backends to repack.

    Scales of magnitude below 2⁻⁴⁰ are +0; one that is not finite, or 2⁵⁰ or more, is a
    `FormatError` that names the tensor.
    """
    fields = raw_fields(weight)
    minimum = fields.minimum
    return fields._replace(
        scale=canonical_weights(fields.scale, weight, name),
        minimum=None if minimum is None else canonical_weights(minimum, weight, name),
    )


def decode(weight: Weight, name: str = "weight") -> Codes:
    """Decode the integer codes and scales that `matmul` is defined on; errors as `unpack`."""
    return fold(unpack(weight, name))


def floats(weight: Weight, name: str = "weight") -> Floats:
    """Return the exact values of a float layout, float32 [N, K], snapped; errors as `unpack`."""
    return canonical_weights(raw_floats(weight), weight, name)


def raw_floats(weight: Weight) -> Floats:
    """Return the exact values of a float layout, float32 [N, K], as stored."""
    raw = weight.parts["raw"]
    if weight.layout is F16_LAYOUT:
        return half_to_float(raw)
    if weight.layout is BF16_LAYOUT:
        return bfloat_to_float(raw)
    if weight.layout is F32_LAYOUT:
        return np.ascontiguousarray(raw).view("<f4").astype(F32, copy=False)
    raise ValueError(f"{weight.layout.name} is not a float layout; use decode()")
