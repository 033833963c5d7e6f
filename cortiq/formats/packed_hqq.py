"""Matrices of HQQ: groups along the columns, with a scale and a zero point that is no integer.

The rows of all groups, [N·K/group, group], are parted into as many runs as a word has codes, the
first run in the highest bits. An element is scale·(code − zero). Source: the hqq package
(`core/quantize.py`, `core/bitpack.py`, `core/utils.py`).
"""

from __future__ import annotations

import numpy as np

from cortiq.formats.packed_codes import (
    BLOCK,
    FLOAT_TYPES,
    Bytes,
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
    if axis != 1:
        hint = "quantise with axis=1, whose groups lie along the columns"
        module.decline("has groups that lie across the rows (axis 0)", hint)
    if name not in PACKINGS:
        module.decline(f"is packed as {name!r}", f"packings that are read: {', '.join(PACKINGS)}")
    if len(shape) != 2 or min(shape) < 1 or group < 1 or shape[1] % group:
        module.fail(f"has groups of {group} columns in a matrix {list(shape)}")
    height, columns = shape
    if group % BLOCK:
        module.decline(f"has groups of {group} columns", "groups of 32·n columns are read")
    kind, bits, each = PACKINGS[name]
    groups = height * (columns // group)
    steps = -(-groups // each)
    raw = module.raw("W_q").reshape(-1)
    if raw.size != steps * group * np.dtype(kind).itemsize:
        module.fail(f"packs {raw.size} bytes of a matrix {list(shape)}")
    words = raw.view(kind).reshape(steps, group)
    scale, zero = (_table(module, end, height, columns // group) for end in ("scale", "zero"))
    for end in NOTES:
        if module.has(end):
            module.info(end)
    how.check_bits(module.stem, bits, most=True)
    how.check_group(module.stem, group, columns)
    low = 128 if bits == 8 else 0

    def make(start: int, stop: int) -> Bytes:
        index = np.arange(start * (columns // group), stop * (columns // group))
        shift = ((each - 1 - index // steps) * bits).astype(words.dtype)
        codes = words[index % steps] >> shift[:, None] & words.dtype.type((1 << bits) - 1)
        codes = codes.astype(np.uint8).reshape(stop - start, columns)
        d, m = scale[start:stop], (low - zero[start:stop]) * scale[start:stop]
        flat = (codes ^ np.uint8(low)).reshape(stop - start, -1, BLOCK)
        packed = nibble_bytes(codes, BLOCK) if bits <= 4 else flat
        return assemble(packed, *(spread(values, columns, group, BLOCK) for values in (d, m)))

    return module.made(shape, "i4b32m" if bits <= 4 else "i8b32m", make)


def _number(module: PackedModule, end: str) -> int:
    found = module.array(end, "I32", "I64", "U8").reshape(-1)
    if found.size != 1:
        module.fail(f"has {found.size} numbers in {end}")
    return int(found[0])


def _table(module: PackedModule, end: str, height: int, groups: int) -> StoredNumbers:
    """Return a number a group, [rows, groups]; a single one stands for all."""
    found = module.scales(end, *FLOAT_TYPES)
    if found.size not in (1, height * groups):
        module.fail(f"has {found.size} numbers in {end} for {height * groups} groups")
    table = found.bits.reshape(-1, 1 if found.size == 1 else groups)
    return StoredNumbers(np.broadcast_to(table, (height, groups)), found.kind)
