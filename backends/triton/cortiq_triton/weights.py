"""Weights on the device, repacked once: planes of int8 codes or packed nibbles, scales as small as
they are exactly, integer sub-scales. Rows are padded with codes of zero to whole groups of 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cortiq.numerics.layouts import LAYOUTS, W16, Weight, floats, unpack
from cortiq.numerics.matmul import check_columns
from cortiq_triton.host_codes import (
    BITS_ABOVE,
    E2M1_CODES,
    PLANES,
    WIDE_CODES,
    codes_of_weight,
    filled,
    integers,
)
from cortiq_triton.rows import PAD
from cortiq_triton.scales import E4M3S, F32S, HALVES, UPPER, Held, e4m3_scales, held, in_form

GROUPED = [layout for layout in LAYOUTS.values() if layout.block == 32 and layout.words == "f32"]
"""Layouts of 32 columns with float32 scales, of which neighbours may be equal."""
SIGNED = {torch.uint16: torch.int16, torch.uint8: torch.int8}
"""The type that holds bits."""
PARTS = ("codes", "bits", "scale", "minimum", "sub_scales", "offsets", "factors")
"""What of a weight lies in memory."""
NARROW = {"Q2_K"}
"""Layouts whose codes times their sub-scales are int8 too; of others |code·sub-scale| ≤ 4096."""
PLANES_PAD = 16
"""Columns that rows of w16 are padded to a multiple of: overlays' second factors have few."""
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
    block : 16, 32, 256, or 0 for a scale a row; blocks : scales that a row has.
    scale, minimum : [N, blocks], stored as `forms` says (scale's, minimum's).
    sub : columns under an integer sub-scale or offset (16 or 32), or a block of 16; 0 for none.
    sub_scales, offsets : int8 [N, K'/sub] or None.
    folded : int8 planes that hold codes times their sub-scales. wide : see `WIDE_CODES`, or 0.
    share : neighbouring blocks under one scale. e2m1 : whether nibbles are places of its table.
    factors : of E4M3 scales, float32 [N, 2] (`scales`).
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
    share: int = 1
    e2m1: bool = False
    factors: torch.Tensor | None = None

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
        names = (
            "width", "kind", "block", "sub", "bias", "forms", "above", "folded", "wide", "share",
            "e2m1",
        )  # fmt: skip
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
        "E2M1": weight.e2m1,
        "SHARE": weight.share,
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
    if weight.layout.name == "e2m1b16":
        found = _pack_as(weight, name, device, step, Held(1, (E4M3S, F32S)))
        return found or _pack_as(weight, name, device, step, Held())  # type: ignore[return-value]
    lie = held(weight, step) if weight.layout in GROUPED else Held()
    return _pack_as(weight, name, device, step, lie)  # type: ignore[return-value]


def _pack_as(weight: Weight, name: str, device: str, step: int, lie: Held) -> Packed | None:
    """Upload a weight whose scales lie so; None if they are no E4M3 numbers and ought to be."""
    rows, whole = weight.shape[0], None
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        part = _packed(weight.rows(start, stop), name, lie)
        if part is None:
            return None
        if whole is None:
            whole = _room(part, rows, device)
        _place(whole, part, start, stop)
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


def _packed(weight: Weight, name: str, lie: Held) -> Packed | None:
    """Some rows, on the host; None as `_pack_as`."""
    fields = unpack(weight, name)
    rows, columns = weight.shape
    pad = PLANES_PAD if weight.layout is W16 else PAD
    padded = -(-columns // pad) * pad
    block = weight.layout.block
    blocks = -(-padded // block) if block else 1
    sub = fields.sub or (block if block == 16 else 32 if fields.minimum is not None else 0)
    kind, bias, codes, bits = codes_of_weight(weight, fields, padded)
    stored = -(-blocks // lie.share)
    scale, minimum, factors = filled(fields.scale[:, :: lie.share], stored), None, None
    if fields.minimum is not None:
        minimum = _form(filled(fields.minimum[:, :: lie.share], stored), weight, lie.forms[1])
    form: np.ndarray | None = scale
    if lie.forms[0] == E4M3S:
        form, factors = e4m3_scales(scale) or (None, None)
    elif block == 32 or weight.layout.name.endswith("_K"):
        form = _form(scale, weight, lie.forms[0])
    if form is None:
        return None
    subs = padded // sub if sub else 0
    return Packed(
        rows, columns, padded, kind, block, stored, sub, bias, codes, torch.from_numpy(form),
        None if minimum is None else torch.from_numpy(minimum),
        integers(fields.sub_scales, subs), integers(fields.offsets, subs),
        (_form_of(form), F32S if minimum is None else _form_of(minimum)),
        1 + (fields.sub_scales is not None and weight.layout.name not in NARROW), bits,
        BITS_ABOVE.get(weight.layout.name, 0), WIDE_CODES.get(weight.layout.name, 0), lie.share,
        weight.layout.name in E2M1_CODES, None if factors is None else torch.from_numpy(factors),
    )  # fmt: skip


def _form(values: np.ndarray, weight: Weight, own: int) -> np.ndarray:
    """The smallest array that holds these floats exactly in the layout's own form.

    Layouts with float32 scales have `own`; int16 holds f16 bits; uint16 the upper half of float32
    (MXFP4's powers of two).
    """
    if weight.layout.words == "f32":
        return in_form(values, own)
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
    return {"float32": F32S, "int16": HALVES, "uint16": UPPER, "uint8": E4M3S}[array.dtype.name]


def _room(part: Packed, rows: int, device: str) -> Packed:
    """Memory for all rows."""

    def like(tensor: torch.Tensor | None, axis: int = 0) -> torch.Tensor | None:
        if tensor is None:
            return None
        shape = list(tensor.shape)
        shape[axis] = rows
        dtype = SIGNED.get(tensor.dtype, tensor.dtype)
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
            room[start:stop] = values.view(room.dtype).to(room.device)
