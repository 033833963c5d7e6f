"""Weights on the device, repacked once: planes of int8 codes or packed nibbles, scales as small as
they are exactly, integer sub-scales. Rows are padded with codes of zero to whole groups of 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cortiq.numerics.groupquants import bytes_of_wide
from cortiq.numerics.layouts import W16, Weight, floats, unpack
from cortiq.numerics.matmul import check_columns
from cortiq.numerics.unpacked_weights import UnpackedWeight
from cortiq_triton import packing
from cortiq_triton.rows import PAD

BYTES, NIBBLES, PLANES, FLOATS, WIDE = range(5)
"""How codes lie: int8; as `packing` says; two int8 planes (w16); none, a `FloatMatrix`; as bytes
that stand for integers of more than 8 bits.
"""
WIDE_CODES = {"e4m3b32": 1, "nf4b32": 2, "fp4b32": 3}
"""What such bytes are, by layout: E4M3, or places of a table (`wide_codes`)."""
F32S, HALVES, UPPER = range(3)
"""How scales lie: float32; as f16 bits; as the upper half of float32."""
OFFSET_CODES = {
    "Q4_0": 8, "Q4_1": 0, "Q4_K": 0, "Q2_K": 0, "Q3_K": 4, "Q5_0": 16, "Q5_1": 0, "Q5_K": 0,
    "Q6_K": 32, "i4b32": 8, "i4b32m": 0,
}  # fmt: skip
"""Layouts whose codes are nibbles, perhaps with bits above them, once this is added."""
BITS_ABOVE = {"Q5_0": 1, "Q5_1": 1, "Q5_K": 1, "Q6_K": 2}
"""Bits above a nibble."""
PARTS = ("codes", "bits", "scale", "minimum", "sub_scales", "offsets")
"""What of a weight lies in memory."""
NARROW = {"Q2_K"}
"""Layouts whose codes times their sub-scales are int8 too; of others |code·sub-scale| ≤ 4096."""
SLICE = 1 << 24
"""Elements repacked at a time: bounds host memory."""


@dataclass
class Packed:
    """A weight [N, K] of codes, for `matvec` and `matmul`.

    Attributes
    ----------
    codes : int8 [N, K'], nibbles uint8 [N, K'/2], or planes int8 [2, N, K'].
    kind : BYTES, NIBBLES, PLANES or WIDE. bias : what nibbles have too much.
    bits : what codes have above their nibbles, int8 [N, K'/8·above]; above : 0, 1 or 2 bits.
    block : 16, 32, 256, or 0 for a scale a row; blocks : how many a row has.
    scale, minimum : [N, blocks], stored as `forms` says (scale's, minimum's).
    sub : columns under an integer sub-scale or offset (16 or 32), or a block of 16; 0 for none.
    sub_scales, offsets : int8 [N, K'/sub] or None.
    folded : int8 planes that hold codes times their sub-scales. wide : see `WIDE_CODES`, or 0.
    """

    height: int
    width: int
    padded: int
    kind: int
    block: int
    blocks: int
    sub: int
    bias: int
    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None
    sub_scales: torch.Tensor | None
    offsets: torch.Tensor | None
    forms: tuple[int, int]
    folded: int = 1
    bits: torch.Tensor | None = None
    above: int = 0
    wide: int = 0

    @property
    def nbytes(self) -> int:
        """Memory on the device."""
        parts = (getattr(self, name) for name in PARTS)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def plane(self) -> int:
        """Codes from one plane to the other."""
        return self.codes.stride(0) if self.kind == PLANES else 0

    def joins(self, other: Packed) -> bool:
        """Whether both can be rows of one weight."""
        names = ("width", "kind", "block", "sub", "bias", "forms", "above", "folded", "wide")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        absent = [
            (getattr(self, name) is None) == (getattr(other, name) is None)
            for name in ("minimum", "sub_scales", "offsets")
        ]
        return same and all(absent)

    @property
    def words(self) -> torch.Tensor:
        """Codes, four bytes a word."""
        return self.codes.view(torch.int32)


@dataclass
class FloatMatrix:
    """A weight of plain floats [N, K]."""

    height: int
    width: int
    values: torch.Tensor


def block_constants(weight: Packed) -> dict[str, Any]:
    """Compile-time facts of a block format."""
    return {
        "BLOCK": weight.block,
        "WIDE": weight.wide,
        "SUB": weight.sub or 32,
        "SCALED": weight.sub_scales is not None,
        "MINIMUM": weight.minimum is not None,
        "OFFSETS": weight.offsets is not None,
        "BIAS": weight.bias,
        "HIGH": weight.above,
        "FORM": weight.forms[0],
        "LOW_FORM": weight.forms[1],
    }


def pack(weight: Weight, name: str, device: str) -> Packed | FloatMatrix:
    """Upload a weight; its rows are repacked on the host, a slice at a time.

    Raises
    ------
    FormatError : a scale or a value is not finite. UnsupportedError : more columns than 32768.
    """
    rows, columns = weight.shape
    if weight.layout.kind == "float":
        return FloatMatrix(rows, columns, torch.from_numpy(floats(weight, name).copy()).to(device))
    check_columns(columns)
    step = max(1, SLICE // columns)
    whole: Packed | None = None
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        part = _packed(weight.rows(start, stop), name)
        if whole is None:
            whole = _room(part, rows, device)
        _place(whole, part, start, stop)
    assert whole is not None
    return whole


def join(parts: Sequence[Packed]) -> Packed:
    """One weight with the rows of all parts, whose own memory becomes a part of it."""
    whole = replace(parts[0], height=sum(part.height for part in parts))
    for name in PARTS:
        arrays = [getattr(part, name) for part in parts]
        if arrays[0] is None:
            continue
        axis, at = int(name == "codes" and whole.kind == PLANES), 0
        joined = torch.cat(arrays, dim=axis)
        setattr(whole, name, joined)
        for part in parts:
            setattr(part, name, joined.narrow(axis, at, part.height))
            at += part.height
    return whole


def first_rows(whole: Packed | FloatMatrix, count: int) -> Packed | FloatMatrix:
    """The first rows of a weight as one of its own, over the same memory."""
    if isinstance(whole, FloatMatrix):
        return FloatMatrix(count, whole.width, whole.values[:count])
    part = replace(whole, height=count)
    for name in PARTS:
        array = getattr(whole, name)
        if array is not None:
            axis = int(name == "codes" and whole.kind == PLANES)
            setattr(part, name, array.narrow(axis, 0, count))
    return part


def _packed(weight: Weight, name: str) -> Packed:
    """Some rows, on the host."""
    fields = unpack(weight, name)
    rows, columns = weight.shape
    padded = -(-columns // PAD) * PAD
    block = weight.layout.block
    blocks = -(-padded // block) if block else 1
    sub = fields.sub or (block if block == 16 else 32 if fields.minimum is not None else 0)
    kind, bias, codes, bits = _codes(weight, fields, padded)
    scale, minimum = _filled(fields.scale, blocks), None
    if fields.minimum is not None:
        minimum = _form(_filled(fields.minimum, blocks), weight)
    form = _form(scale, weight) if block == 32 or weight.layout.name.endswith("_K") else scale
    subs = padded // sub if sub else 0
    return Packed(
        rows, columns, padded, kind, block, blocks, sub, bias, codes, torch.from_numpy(form),
        None if minimum is None else torch.from_numpy(minimum),
        _integers(fields.sub_scales, subs), _integers(fields.offsets, subs),
        (_form_of(form), F32S if minimum is None else _form_of(minimum)),
        1 + (fields.sub_scales is not None and weight.layout.name not in NARROW), bits,
        BITS_ABOVE.get(weight.layout.name, 0), WIDE_CODES.get(weight.layout.name, 0),
    )  # fmt: skip


def _codes(
    weight: Weight, fields: UnpackedWeight, padded: int
) -> tuple[int, int, torch.Tensor, torch.Tensor | None]:
    """Kind, bias, codes, and the bits above nibbles."""
    rows, columns = weight.shape
    if weight.layout is W16:
        planes = np.zeros((2, rows, padded), np.int8)
        planes[0, :, :columns], planes[1, :, :columns] = weight.parts["hi"], weight.parts["lo"]
        return PLANES, 0, torch.from_numpy(planes), None
    if weight.layout.name in WIDE_CODES:
        filled = np.zeros((rows, padded), fields.codes.dtype)
        filled[:, :columns] = fields.codes
        given = bytes_of_wide(weight.layout.name, filled)
        return WIDE, 0, torch.from_numpy(given.view(np.int8)), None
    codes = np.zeros((rows, padded), np.int8)
    codes[:, :columns] = fields.codes
    bias = OFFSET_CODES.get(weight.layout.name)
    if bias is None:
        return BYTES, 0, torch.from_numpy(codes), None
    lifted, bits = (codes + np.int8(bias)).view(np.uint8), None
    above = BITS_ABOVE.get(weight.layout.name, 0)
    if above:
        bits = torch.from_numpy(packing.bits_above(lifted, above))
    return NIBBLES, bias, torch.from_numpy(packing.nibbles_of(lifted)), bits


def _filled(array: np.ndarray, width: int) -> np.ndarray:
    """Columns of zeros up to a width."""
    out = np.zeros((array.shape[0], width), array.dtype)
    out[:, : array.shape[1]] = array
    return out


def _integers(array: np.ndarray | None, width: int) -> torch.Tensor | None:
    """Sub-scales or offsets as int8."""
    if array is None:
        return None
    return torch.from_numpy(_filled(array.astype(np.int8), width))


def _form(values: np.ndarray, weight: Weight) -> np.ndarray:
    """The smallest array that holds these floats exactly in the layout's own form.

    float32 is its own; int16 holds f16 bits; uint16 the upper half of float32 (MXFP4's powers of
    two).
    """
    if weight.layout.words == "f32":
        return values
    bits = values.view(np.uint32)
    if weight.layout.name == "MXFP4":
        return (bits >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    same = halves.astype(np.float32).view(np.uint32) == bits
    if not same.all():
        raise ValueError(f"{weight.layout.name} holds a scale that is no f16")
    return halves.view(np.int16)


def _form_of(array: np.ndarray) -> int:
    return {"float32": F32S, "int16": HALVES, "uint16": UPPER}[array.dtype.name]


def _room(part: Packed, rows: int, device: str) -> Packed:
    """Memory for all rows."""

    def like(tensor: torch.Tensor | None, axis: int = 0) -> torch.Tensor | None:
        if tensor is None:
            return None
        shape = list(tensor.shape)
        shape[axis] = rows
        dtype = torch.int16 if tensor.dtype == torch.uint16 else tensor.dtype
        return torch.empty(shape, dtype=dtype, device=device)

    whole = object.__new__(Packed)
    whole.__dict__.update(part.__dict__)
    whole.height = rows
    whole.codes = like(part.codes, int(part.kind == PLANES))  # type: ignore[assignment]
    for name in PARTS[1:]:
        setattr(whole, name, like(getattr(part, name)))
    return whole


def _place(whole: Packed, part: Packed, start: int, stop: int) -> None:
    at = (slice(None), slice(start, stop)) if whole.kind == PLANES else (slice(start, stop),)
    whole.codes[at] = part.codes.to(whole.codes.device)
    for name in PARTS[1:]:
        room, values = getattr(whole, name), getattr(part, name)
        if room is not None:
            values = values.view(torch.int16) if values.dtype == torch.uint16 else values
            room[start:stop] = values.to(room.device)
