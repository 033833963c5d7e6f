"""Matrices of HQQ: groups with a scale and a zero point that is no integer.

Groups lie along the columns (axis 1): all elements in order are [N·K/group, group]; or across the
rows (axis 0): [group, N·K/group], with a scale for each column of that. These rows are parted into
as many runs as a word has codes, the first run in the highest bits. An element is
scale·(code − zero). Source: the hqq package
(`core/quantize.py`, `core/bitpack.py`, `core/utils.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cortiq.formats.packed_codes import (
    BLOCK,
    FLOAT_TYPES,
    Bytes,
    Codes,
    StoredNumbers,
    assemble,
    nibble_bytes,
    spread,
)
from cortiq.formats.packed_tensors import PackedModule, PackedTensor
from cortiq.formats.quantisation import Quantisation

PACKINGS = {
    "8bit_u8": ("u1", 8, 1), "4bit_u8": ("u1", 4, 2), "3bit_32": ("<i4", 3, 10),
    "2bit_u8": ("u1", 2, 4), "1bit_u8": ("u1", 1, 8),
}  # fmt: skip
"""Word, bits of a code and codes of a word."""
ACROSS = "groups across the rows (axis 0)"
NOTES = (
    "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero", "compute_dtype", "nbits",
    "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize",
    "round_zero",
)  # fmt: skip
"""Tensors that say how a matrix was made, or is computed with, and not what it is."""


def hqq(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `W_q` with `scale`, `zero`, `shape`, `group_size`, `axis` and `packing`."""
    shape = tuple(int(n) for n in module.array("shape", "I64", "I32").reshape(-1)[:3])
    group, axis = _number(module, "group_size"), _number(module, "axis")
    name = module.array("packing", "U8").tobytes()[:16].decode("latin-1")
    if axis not in (0, 1):
        module.fail(f"has groups along an axis {axis}, which is neither 0 nor 1")
    if name not in PACKINGS:
        module.decline(f"is packed as {name!r}", f"packings that are read: {', '.join(PACKINGS)}")
    if len(shape) != 2 or min(shape) < 1 or group < 1 or shape[axis] % group:
        module.fail(f"has groups of {group} columns in a matrix {list(shape)}")
    height, columns = shape
    if axis == 1 and group % BLOCK:
        module.decline(f"has groups of {group} columns", "groups of 32·n columns are read")
    kind, bits, each = PACKINGS[name]
    groups = height * columns // group
    length, width = (groups, group) if axis == 1 else (group, groups)
    steps = -(-length // each)
    raw = module.raw("W_q").reshape(-1)
    if raw.size != steps * width * np.dtype(kind).itemsize:
        module.fail(f"packs {raw.size} bytes of a matrix {list(shape)}")
    words = raw.view(kind).reshape(steps, width)
    scale, zero = (_table(module, end, groups) for end in ("scale", "zero"))
    for end in NOTES:
        if module.has(end):
            module.info(end)
    how.check_bits(module.stem, bits, most=True)
    how.check_group(module.stem, group, columns)
    if axis == 0:
        across = _across(_Words(words, bits, each), scale, zero, columns)
        return module.made(shape, "F32", across, ACROSS)
    scale, zero = (StoredNumbers(n.bits.reshape(height, -1), n.kind) for n in (scale, zero))
    low = 128 if bits == 8 else 0

    def make(start: int, stop: int) -> Bytes:
        index = np.arange(start * (columns // group), stop * (columns // group))
        codes = _Words(words, bits, each).codes(index[:, None], slice(None))
        codes = codes.reshape(stop - start, columns)
        d, m = scale[start:stop], (low - zero[start:stop]) * scale[start:stop]
        flat = (codes ^ np.uint8(low)).reshape(stop - start, -1, BLOCK)
        packed = nibble_bytes(codes, BLOCK) if bits <= 4 else flat
        return assemble(packed, *(spread(values, columns, group, BLOCK) for values in (d, m)))

    return module.made(shape, "i4b32m" if bits <= 4 else "i8b32m", make)


class _Words(NamedTuple):
    """Words [steps, width] with several codes each, of rows that lie `steps` apart."""

    words: Codes
    bits: int
    each: int

    def codes(self, rows: Codes, columns: Codes | slice) -> Bytes:
        """Return the codes of rows [n, 1] in all columns, or of places (rows, columns)."""
        steps, kind = len(self.words), self.words.dtype
        shift = ((self.each - 1 - rows // steps) * self.bits).astype(kind)
        picked = self.words[rows[:, 0] % steps] if isinstance(columns, slice) else (
            self.words[rows % steps, columns]
        )  # fmt: skip
        return (picked >> shift & kind.type((1 << self.bits) - 1)).astype(np.uint8)


def _across(
    words: _Words, scale: StoredNumbers, zero: StoredNumbers, columns: int
) -> Callable[[int, int], Bytes]:
    """Return rows of floats: a scale for each column has no layout."""
    groups = scale.size

    def make(start: int, stop: int) -> Bytes:
        at = np.arange(start * columns, stop * columns)
        place = at % groups
        codes = words.codes(at // groups, place).astype(np.float64)
        values = scale[place] * (codes - zero[place])
        return values.reshape(-1, columns).astype("<f4").view(np.uint8)

    return make


def _number(module: PackedModule, end: str) -> int:
    found = module.array(end, "I32", "I64", "U8").reshape(-1)
    if found.size != 1:
        module.fail(f"has {found.size} numbers in {end}")
    return int(found[0])


def _table(module: PackedModule, end: str, groups: int) -> StoredNumbers:
    """Return a number a group; a single one stands for all."""
    found = module.scales(end, *FLOAT_TYPES)
    if found.size not in (1, groups):
        module.fail(f"has {found.size} numbers in {end} for {groups} groups")
    return StoredNumbers(np.broadcast_to(found.bits.reshape(-1), (groups,)), found.kind)
