"""Tensors of CMF files in layouts of the contract: their own codes, repacked row by row.

| encoding | layout |
|---|---|
| q8_row | w8: codes as they lie in the file |
| q4_block, q4_tiled, q1, q1t | Q4_0: nibbles in another order, ±1 and 0 for signs and digits |
| q4tp, q2tp | i4b32: a rung of the row's ladder for every group; 2c − 3 under half of q2tp's |
| vbit, vbit_ro | Q8_0, or Q4_0 where no row has more than four bits |

Codes of vbit reach from −(2^(b−1) − 1) to 2^(b−1); those of 8 bits (of 4, in Q4_0) change their
sign, and so does the scale. What has no codes under a scale, q8_2f's two factors, values laid over
a q1s or q1t, and q4_block rows of broken groups, becomes floats.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cortiq.formats.cmf import decode
from cortiq.formats.cmf.dtypes import GROUP, Dtype
from cortiq.formats.cmf.payloads import Bytes
from cortiq.formats.own_layout import OwnTensor
from cortiq.formats.packed_codes import assemble, nibble_bytes, paired_nibbles, unpack_codes
from cortiq.formats.packed_tensors import PackedTensor

FLOATS = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
"""Types of plain numbers, as the rest of the program calls them."""
Make = Callable[[int, int], Bytes]


def layout_of(dtype: Dtype, shape: tuple[int, ...], raw: Bytes) -> str:
    """Return the layout that a tensor is given to the graph in."""
    if dtype.name in FLOATS:
        return FLOATS[dtype.name]
    if not dtype.decodes:
        return "U8"
    whole = shape[-1] % GROUP == 0
    if dtype.name in ("q4_block", "q4_tiled", "q1"):
        return "Q4_0" if whole else "F32"
    if dtype.name in ("q1s", "q1t"):
        return "F32" if overlaid(dtype, shape, raw) else "Q4_0"
    if dtype.name in ("vbit", "vbit_ro"):
        return "Q4_0" if int(raw[: shape[0]].max()) <= 4 else "Q8_0"
    return {"q8_row": "w8", "q4tp": "i4b32", "q2tp": "i4b32"}.get(dtype.name, "F32")


def overlaid(dtype: Dtype, shape: tuple[int, ...], raw: Bytes) -> bool:
    """Return whether values are laid over the groups of a q1s or q1t."""
    size = 6 if dtype.name == "q1s" else 9
    fixed = size * shape[0] * (shape[1] // GROUP) + 4 * (1 if size == 6 else shape[0] + 1)
    return len(raw) > fixed


def tensor_of(
    name: str, dtype: Dtype, shape: tuple[int, ...], raw: Bytes
) -> OwnTensor | PackedTensor:
    """Return a tensor that is not of plain numbers, in its layout."""
    layout, rows = layout_of(dtype, shape, raw), decode.matrix_of(shape)
    if layout == "w8":
        count = rows[0] * rows[1]
        codes = raw[:count].view(np.int8).reshape(shape)
        scale = decode.half_values(raw[count:]).reshape(-1, 1)
        return OwnTensor(name, shape, layout, {"codes": codes, "scale": scale})
    note = ""
    if layout == "F32":
        note = {"q8_2f": "a factor for each column (q8_2f)"}.get(
            dtype.name, f"{dtype.name} values that are no codes under a scale"
        )
        make = _float_rows(dtype, shape, raw)
    else:
        make = _rows(dtype, rows, raw, layout)
    return PackedTensor(name, shape, layout, make, (name,), note=note)


def _float_rows(dtype: Dtype, shape: tuple[int, ...], raw: Bytes) -> Make:
    def make(start: int, stop: int) -> Bytes:
        values = decode.decode_rows(dtype, shape, raw, start, stop)
        return np.ascontiguousarray(values, "<f4").view(np.uint8)

    return make


def _rows(dtype: Dtype, shape: tuple[int, int], raw: Bytes, layout: str) -> Make:
    if dtype.name in ("vbit", "vbit_ro"):
        offsets = 4 * (shape[0] + 1) if dtype.name == "vbit_ro" else 0
        return lambda start, stop: _vbit(shape, raw, layout, offsets, start, stop)
    function = {
        "q4_block": _q4_block, "q4_tiled": _q4_tiled, "q4tp": _q4tp, "q2tp": _q2tp,
        "q1": _q1, "q1s": _q1, "q1t": _q1t,
    }[dtype.name]  # fmt: skip
    return lambda start, stop: function(shape, raw, start, stop)


def _joined(scale: Bytes, packed: Bytes) -> Bytes:
    """Return rows of blocks: scale bytes [n, groups, 2] and codes [n, groups, bytes]."""
    return np.concatenate([scale, packed], axis=2).reshape(len(packed), -1)


def _q4_block(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Bytes:
    groups = shape[1] // GROUP
    found = decode.block_groups(shape[0] * groups, raw, start * groups, stop * groups)
    packed, scale = (part.reshape(stop - start, groups, -1) for part in found)
    return _joined(scale, paired_nibbles(packed.reshape(stop - start, -1), GROUP))


def _q4_tiled(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Bytes:
    tiles = decode.tiles_of(shape, raw, 18, start, stop)
    packed = np.ascontiguousarray(tiles[..., 2:]).reshape(stop - start, -1)
    return _joined(tiles[..., :2], paired_nibbles(packed, GROUP))


def _q4tp(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Bytes:
    codes, scale = decode.ladder_scales(shape, raw, 16, start, stop)
    packed = paired_nibbles(codes.reshape(stop - start, -1), GROUP)
    return assemble(packed, scale.astype(np.float64))


def _q2tp(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Bytes:
    planes, scale = decode.ladder_scales(shape, raw, 8, start, stop)
    codes = unpack_codes(planes.reshape(stop - start, -1), 2, shape[1])
    nibbles = codes * np.uint8(2) + np.uint8(5)  # 2c − 3, and 8
    return assemble(nibble_bytes(nibbles, GROUP), scale.astype(np.float64) / 2)


def _q1(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Bytes:
    tiles = decode.tiles_of(shape, raw, 6, start, stop)
    nibbles = decode.sign_bits(tiles) * np.uint8(2) + np.uint8(7)
    return _joined(tiles[..., :2], nibble_bytes(nibbles.reshape(stop - start, -1), GROUP))


def _q1t(shape: tuple[int, int], raw: Bytes, start: int, stop: int) -> Bytes:
    tiles = decode.tiles_of(shape, raw, 9, start, stop)
    nibbles = np.array([8, 9, 7], np.uint8)[decode.ternary_digits(tiles)]
    return _joined(tiles[..., :2], nibble_bytes(nibbles.reshape(stop - start, -1), GROUP))


def _vbit(
    shape: tuple[int, int], raw: Bytes, layout: str, offsets: int, start: int, stop: int
) -> Bytes:
    codes, widths, scale = decode.vbit_codes(shape, raw, start, stop, offsets)
    turned = widths == (4 if layout == "Q4_0" else 8)
    codes = np.where(turned[:, None], -codes, codes)
    signed = np.where(turned[:, None], -scale, scale)
    halves = signed.astype("<f2")[..., None].view(np.uint8)
    if layout == "Q4_0":
        return _joined(halves, nibble_bytes((codes + 8).astype(np.uint8), GROUP))
    packed = codes.astype(np.int8).view(np.uint8).reshape(stop - start, -1, GROUP)
    return _joined(halves, packed)
