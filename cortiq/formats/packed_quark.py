"""Matrices of Quark in 4-bit integers: columns of codes that run down the rows, or along them.

Of groups, codes are I32 [K, N/8], scales [groups, N] and zero points I32 [groups, N/8]; with a
scale a row or a matrix, codes are I32 [N, K/8]. In the packing `reorder` codes lie as AWQ's.
Source: the amd-quark package (`torch/utils/pack.py`, `torch/export/nn/modules/realquantizer.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cortiq.formats.packed_codes import AWQ_ORDER, FLOAT_TYPES, Bytes, Codes, unpack_words
from cortiq.formats.packed_integers import IntegerRows, _by_row, _group
from cortiq.formats.packed_tensors import PackedModule, PackedTensor
from cortiq.formats.quantisation import Quantisation

ORDERS = {"reorder": AWQ_ORDER, "order": tuple(range(8))}
EIGHT = 8
"""Codes of a word; also what is added to a signed code."""


def quark_int4(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `weight` in I32 with `weight_scale`; the configuration says the type of its codes."""
    kind, _, packing = how.codes.partition("-")
    if kind not in ("int4", "uint4") or packing not in ORDERS:
        hint = "one type of integers, int4 or uint4, and pack_method reorder or order are read"
        module.decline("has packed integers whose type quantization_config does not say", hint)
    words, order = module.array("weight", "I32"), ORDERS[packing]
    if words.ndim != 2:
        module.fail(f"packs {list(words.shape)} words, which is no matrix")
    scale = module.scales("weight_scale", *FLOAT_TYPES)
    signed = np.uint8(EIGHT if kind == "int4" else 0)
    if len(scale.shape) == 2 and scale.shape[1] == EIGHT * words.shape[1]:
        columns, height = words.shape[0], scale.shape[1]
        group = _group(module, columns, scale.shape[0])
        points = _points(module, (scale.shape[0], words.shape[1]))

        def codes(start: int, stop: int) -> Bytes:
            return unpack_words(words, start, stop, order) ^ signed

        def zero(start: int, stop: int) -> Codes:
            if points is None:
                return np.full((stop - start, scale.shape[0]), signed, np.int16)
            return (unpack_words(points, start, stop, order) ^ signed).astype(np.int16)

        of: Callable[[int, int], np.ndarray] = lambda a, b: scale[:, a:b].T  # noqa: E731
    else:
        height, columns = words.shape[0], EIGHT * words.shape[1]
        by_row = _by_row(module, scale, height)
        group = _group(module, columns, by_row.shape[1])
        if module.has("weight_zero_point") and module.array("weight_zero_point").any():
            module.decline("has zero points a row", "take groups, or symmetric codes")
        points = None

        def codes(start: int, stop: int) -> Bytes:
            return unpack_words(words[start:stop], 0, columns, order).T ^ signed

        def zero(start: int, stop: int) -> Codes:
            return np.full((stop - start, 1), signed, np.int16)

        of = lambda a, b: by_row[a:b]  # noqa: E731
    middle = kind == "int4" and points is None
    rows = IntegerRows(4, columns, group, codes, of, None if middle else zero)
    return module.made((height, columns), rows.layout, rows.rows)


def _points(module: PackedModule, shape: tuple[int, ...]) -> Codes | None:
    """Return the words of zero points; None if all are 0."""
    if not module.has("weight_zero_point"):
        return None
    words = module.array("weight_zero_point", "I32")
    if words.shape != shape:
        module.fail(f"has zero points {list(words.shape)}, not {list(shape)}")
    return words if words.any() else None
