"""Matrices of bitsandbytes: NF4 and FP4 under a scale for a run of elements, and rows of int8.

Source: bitsandbytes' `functional.py` (`QuantState`, `quantize_4bit`) and its `Linear8bitLt`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from cortiq.formats.packed_codes import (
    BLOCK,
    Bytes,
    Codes,
    Doubles,
    StoredNumbers,
    assemble,
    paired_nibbles,
)
from cortiq.formats.packed_integers import IntegerRows
from cortiq.formats.packed_tensors import PackedModule, PackedTensor
from cortiq.formats.quantisation import Quantisation
from cortiq.formats.strict_json import parse_object

STATE = "weight.quant_state.bitsandbytes__"
NF4 = (
    -31908, -22214, -16754, -12601, -9076, -5896, -2905, 0,
    2539, 5135, 7853, 10782, 14062, 17952, 23068, 31908,
)  # fmt: skip
FP4 = (0, 1, 128, 192, 64, 96, 32, 48, 0, -1, -128, -192, -64, -96, -32, -48)
TABLES = {"nf4": ("nf4b32", np.array(NF4), 1 / 31908), "fp4": ("fp4b32", np.array(FP4), 1 / 192)}
"""Layout, integers and unit of each table."""
NEAR = 2.0**-16
"""Largest distance of a file's table from ours: half of NF4's unit."""
INT8_LIMIT = 127


def table_of(module: PackedModule) -> str:
    """Return "nf4" or "fp4" of a module whose tensors say one, else nothing."""
    return next((table for table in TABLES if module.has(STATE + table)), "")


def bitsandbytes_table(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `weight`, two codes a byte with the earlier one high, and `weight.absmax`.

    A run of elements, counted through all rows, has one scale. A scale in U8 is the place of a
    number in `weight.nested_quant_map`, times `weight.nested_absmax` of 256 scales, plus an offset.
    """
    table = table_of(module)
    layout, values, unit = TABLES[table]
    how.check_table(module.stem, table)
    state = parse_object(module.raw(STATE + table).tobytes(), f"{module.stem}.{STATE}{table}")
    shape = _counts(module, state.get("shape"))
    (run,) = _counts(module, [state.get("blocksize")])
    if len(shape) != 2:
        module.fail(f"packs {list(shape)}, which is no matrix")
    height, columns = shape
    module.multiple(columns, BLOCK)
    if run % BLOCK:
        module.decline(f"has a scale for {run} elements", "runs of 32·n elements are read")
    packed = module.raw("weight").reshape(-1)
    if packed.size * 2 != height * columns:
        module.fail(f"packs {packed.size} bytes of a matrix {list(shape)}")
    _check_table(module, values.astype(np.float64) * unit)
    scales = _scales(module, state, -(-height * columns // run))
    flat = packed.reshape(height, columns // 2)

    def make(start: int, stop: int) -> Bytes:
        swapped = flat[start:stop] << np.uint8(4) | flat[start:stop] >> np.uint8(4)
        first = np.arange(start, stop)[:, None] * columns + np.arange(0, columns, BLOCK)
        return assemble(paired_nibbles(swapped, BLOCK), scales(first // run) * unit)

    return module.made((height, columns), layout, make)


def _counts(module: PackedModule, found: object) -> tuple[int, ...]:
    """Return positive counts of a list in a module's state."""
    if not isinstance(found, list) or not all(type(n) is int and 0 < n < 1 << 40 for n in found):
        module.fail(f"says of its state {str(found)[:60]!r}, which are no counts")
    return tuple(found)


def _check_table(module: PackedModule, ours: Doubles) -> None:
    """Refuse a file whose table is not the one that its name says."""
    found = module.scales("weight.quant_map", "F32").reshape(-1)[:]
    if found.shape != ours.shape or not np.abs(found - ours).max() <= NEAR:
        module.decline("has a table of its own", "bitsandbytes' own tables, nf4 and fp4, are read")


def _scales(
    module: PackedModule, state: dict[str, object], count: int
) -> Callable[[Codes], Doubles]:
    """Return the function that gives scales by the number of their run."""
    stored = module.array("weight.absmax", "F32", "U8").reshape(-1)
    if stored.size != count:
        module.fail(f"has {stored.size} scales, not {count}")
    if module.info("weight.absmax").type == "F32":
        plain = StoredNumbers(stored, "F32")
        return lambda index: plain[index]
    numbers = module.scales("weight.nested_quant_map", "F32").reshape(-1)[:]
    groups = module.scales("weight.nested_absmax", "F32").reshape(-1)
    (group,) = _counts(module, [state.get("nested_blocksize")])
    offset = state.get("nested_offset")
    if numbers.size != 256 or groups.size != -(-count // group):
        module.fail(f"has {groups.size} scales of {count} scales, and a table of {numbers.size}")
    if type(offset) not in (int, float):
        module.fail(f"says that nested_offset is {str(offset)[:60]!r}")
    least = float(str(offset))
    return lambda index: numbers[stored[index]] * groups[index // group] + least


def bitsandbytes_int8(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `weight` in I8 and `SCB`, the largest magnitude of each row, which 127 stands for."""
    weight = module.array("weight", "I8")
    how.check_bits(module.stem, 8)
    columns, height = weight.shape[-1], prod(weight.shape[:-1])
    largest = module.scales("SCB", "F32").reshape(-1, 1)
    if largest.size != height or weight.ndim != 2:
        module.fail(f"has {largest.size} scales for {list(weight.shape)}")
    if module.has("weight_format") and module.array("weight_format", "U8").any():
        module.decline("is in an order of a GPU's", "save it again with bitsandbytes 0.45 or later")
    module.multiple(columns, BLOCK)

    def codes(start: int, stop: int) -> Bytes:
        return weight[start:stop].view(np.uint8) ^ np.uint8(128)

    rows = IntegerRows(8, columns, columns, codes, lambda a, b: largest[a:b] / INT8_LIMIT, None)
    return module.made((height, columns), rows.layout, rows.rows)
