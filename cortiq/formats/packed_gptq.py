"""Packed integers of GPTQ and AWQ: columns of codes that run down the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cortiq.formats.integer_rows import IntegerRows, integer_matrix
from cortiq.formats.packed_codes import (
    FLOAT_TYPES,
    Bytes,
    Codes,
    StoredNumbers,
    unpack_codes,
    unpack_columns,
    unpack_words,
)
from cortiq.formats.packed_integers import BITS, _group
from cortiq.formats.packed_tensors import PackedModule, PackedTensor
from cortiq.formats.quantisation import Quantisation


def gptq_or_awq(module: PackedModule, how: Quantisation) -> PackedTensor:
    """Read `qweight`, I32: [K·b/32, N] of GPTQ, [K, N·b/32] of AWQ; the shapes tell them apart."""
    words = module.array("qweight", "I32")
    zeros = module.array("qzeros", "I32")
    scale = module.scales("scales", *FLOAT_TYPES)
    if words.ndim != 2 or zeros.ndim != 2 or len(scale.shape) != 2 or len(zeros) != scale.shape[0]:
        module.fail("has codes, zero points and scales whose shapes do not fit each other")
    groups, height = scale.shape
    bits = zeros.shape[1] * 32 // height if height else 0
    if bits not in BITS or zeros.shape[1] * 32 != height * bits:
        module.fail(f"has {zeros.shape[1]} words of zero points for {height} rows")
    how.check_bits(module.stem, bits)
    by_columns = words.shape[1] == height  # of words; then a word has codes of several columns
    how.check_method(module.stem, "gptq" if by_columns else "awq")
    columns = words.shape[0] * 32 // bits if by_columns else words.shape[0]
    if not by_columns and words.shape[1] * 32 != height * bits:
        module.fail(f"has {words.shape[1]} words of codes for {height} rows")
    group = _group(module, columns, groups)
    how.check_group(module.stem, group, columns)
    if by_columns:
        pairs, codes = _down(words, bits, columns)
        of = lambda a, b: scale[:, a:b].T  # noqa: E731
        rows = IntegerRows(bits, columns, group, codes, of, None, pairs)
        return _gptq(module, how, rows, zeros, scale)
    if bits != 4:
        module.decline(f"packs codes of {bits} bits as AWQ does", "AWQ of 4 bits is read")
    rows = IntegerRows(
        bits,
        columns,
        group,
        lambda a, b: unpack_words(words, a, b),
        lambda a, b: scale[:, a:b].T,
        lambda a, b: unpack_words(zeros, a, b).astype(np.int16),
    )
    return module.made((height, columns), rows.layout, rows.rows)


def _down(
    words: Codes, bits: int, columns: int
) -> tuple[Callable[[int, int], Bytes], Callable[[int, int], Bytes]]:
    """Return bytes, and codes, of words that lie one below the other, [K·b/32, N], by output."""

    def pairs(start: int, stop: int) -> Bytes:
        return np.ascontiguousarray(words[:, start:stop].T).view(np.uint8)

    def codes(start: int, stop: int) -> Bytes:
        return unpack_codes(pairs(start, stop), bits, columns)

    return pairs, codes


def _gptq(
    module: PackedModule, how: Quantisation, rows: IntegerRows, zeros: Codes, scale: StoredNumbers
) -> PackedTensor:
    """Read GPTQ's zero points, which version 1 stores less one, and the order of its columns."""
    bits, middle = rows.bits, 1 << (rows.bits - 1)
    first = int(unpack_columns(zeros[:1], bits, 0, 1)[0, 0])
    less = 1 if how.zeros_less_one else 0
    if how.symmetric and first in (middle, middle - 1):
        less = middle - first  # what a symmetric file stores tells its version

    def zero(start: int, stop: int) -> Codes:
        found = unpack_columns(zeros, bits, start, stop).T.astype(np.int16) + less
        if how.symmetric and (found != middle).any():
            module.fail("has zero points, but quantization_config says sym")
        return found

    made = _looked_at(rows, zero) if how.symmetric else replace(rows, zero=zero)
    return integer_matrix(module, (scale.shape[1], rows.columns), made, "g_idx")


def _looked_at(rows: IntegerRows, zero: Callable[[int, int], Codes]) -> IntegerRows:
    """Return rows whose zero points are looked at, though they are not used."""

    def after(read: Callable[[int, int], Bytes]) -> Callable[[int, int], Bytes]:
        def make(start: int, stop: int) -> Bytes:
            zero(start, stop)
            return read(start, stop)

        return make

    pairs = None if rows.pairs is None else after(rows.pairs)
    return replace(rows, codes=after(rows.codes), pairs=pairs)
