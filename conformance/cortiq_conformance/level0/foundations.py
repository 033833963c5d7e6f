"""Foundations of all other cases: the order of float sums, the quantiser, scalar functions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from cortiq.ir import ops
from cortiq.numerics import scalar
from cortiq.numerics.contract import F32, LANES, Flags, Floats, exp2_int
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData, edges, every_bfloat16
from cortiq_conformance.probes import floats, one, through_quantise

STAGE = 0
WIDTH = 256
FEW_LANES = (5, 102, 240)
"""The last one is a term shorter than the others where a sum ends at 700 or 1000."""


def cases() -> Iterator[Case]:
    """Yield the foundations of level 0."""
    for width in (256, 512, 2048):
        yield _case("canonical_sum", "RMSNorm", f"squares of powers of two, {width}",
                    partial(_sums, width))  # fmt: skip
    for terms, filled in ((3, 700), (4, 1000)):
        yield _case("canonical_sum", "RMSNorm", f"lanes of {terms} squares, most lanes zero",
                    partial(_few_lanes, filled))  # fmt: skip
    for name, build in QUANTISED.items():
        yield _case("Quantise", "Quantise", name, build)
    for function in scalar.ACTIVATIONS:
        op = ops.Activation(function)
        what = f"{function}, every value of 8 mantissa bits"
        yield _case("Activation", "Activation", what, partial(_elementwise, op, True))
        what = f"{function}, random mantissas and edges"
        yield _case("Activation", "Activation", what, partial(_elementwise, op, False))
    for cap in (1.0, 30.0, 50.0):
        yield _case("SoftCap", "SoftCap", f"cap {cap:g}",
                    partial(_elementwise, ops.SoftCap(cap), False))  # fmt: skip


def _case(family: str, op: str, what: str, build: object) -> Case:
    return Case(f"level0/{family}[{what}]", 0, family, op, build, STAGE)  # type: ignore[arg-type]


def _sums(width: int, source: CaseData) -> Scenario:
    """Return inputs for which only the order of the sum rounds; squares and products are exact."""
    exponents = source.integers(-12, 13, 48, width)
    signs = source.integers(0, 2, 48, width).astype(F32) * F32(2) - F32(1)
    norm = ops.RMSNorm(width, 2.0**-40, weighted=False)
    return one(norm, {"x": floats(width)}).given(x=exp2_int(exponents) * signs)


def in_few_lanes(values: Floats, filled: int, other: float = 0.0) -> Floats:
    """Return values in three lanes of a canonical sum of so many terms, `other` elsewhere.

    A sum over all lanes hides how a lane was added: its error is a small part of the whole.
    """
    column = np.arange(values.shape[-1])
    kept = np.isin(column % LANES, FEW_LANES) & (column < filled)
    return np.where(kept, values, F32(other))


def _few_lanes(filled: int, source: CaseData) -> Scenario:
    """Return inputs whose squares have 12 bits and whose division by the width is exact."""
    x = source.integers(1, 1 << 12, 48, 1024).astype(F32) * exp2_int(source.integers(-6, 7, 48, 1))
    norm = ops.RMSNorm(1024, 2.0**-40, weighted=False)
    return one(norm, {"x": floats(1024)}).given(x=in_few_lanes(x, filled))


def _ties(source: CaseData) -> Scenario:
    """Return rows whose first element fixes the exponent; the others lie between integers."""
    rows = 24
    exponent = source.integers(-50, 30, rows)
    whole = source.integers(-16000, 16000, rows, WIDTH).astype(F32)
    x = (whole + F32(0.5)) * exp2_int(exponent)[:, None]
    x[:, 0] = F32(20000) * exp2_int(exponent)
    return through_quantise(WIDTH).given(x=np.where(np.abs(x) < 2.0**-40, F32(0), x))


def _thresholds(source: CaseData) -> Scenario:
    """Return row maxima around the mantissa at which the exponent grows, at every exponent."""
    exponents = np.arange(-39, 49, dtype=np.int32)
    steps = np.array([0x7DFFFE, 0x7DFFFF, 0x7E0000, 0x7E0001], np.int32)
    bits = (((exponents + 127) << np.int32(23))[:, None] + steps).reshape(-1)
    x = source.spread(len(bits), WIDTH, low=-40, high=-39)
    x[:, ::3] = source.floats(len(bits), len(range(0, WIDTH, 3))) * exp2_int(np.repeat(
        np.maximum(exponents - 4, -39), len(steps)))[:, None]  # fmt: skip
    x[:, 7] = bits.view(F32)
    return through_quantise(WIDTH).given(x=np.where(np.abs(x) < 2.0**-40, F32(0), x))


def _extremes(source: CaseData) -> Scenario:
    """Return rows of zeros among live ones, values next to 2⁻⁴⁰ and to 2⁵⁰, one lone value."""
    x = source.floats(6, WIDTH)
    x[1] = 0
    x[2] = source.spread(WIDTH, low=-40, high=-38)
    x[3] = source.spread(WIDTH, low=40, high=50)
    x[4, 1:] = 0
    x[5] = source.spread(WIDTH, low=-40, high=49)
    return through_quantise(WIDTH).given(x=x)


QUANTISED = {
    "halves round to even": _ties,
    "maxima around the exponent's threshold": _thresholds,
    "zeros, the smallest and the largest": _extremes,
    "bell-shaped rows": lambda source: through_quantise(WIDTH).scenario(source, 16),
}


def _elementwise(op: ops.Activation | ops.SoftCap, whole: bool, source: CaseData) -> Scenario:
    """Return values in rows of 256, without those that leave the domain by definition."""
    if whole:
        values = every_bfloat16()
    else:
        parts = (edges(), source.spread(4096), source.spread(4096, low=-12, high=7))
        values = np.concatenate([*parts, source.floats(2048, amplitude=4)])
    return one(op, {"x": floats(WIDTH)}).given(x=in_rows(values[~_leaves(op, values)]))


def _leaves(op: ops.Activation | ops.SoftCap, values: Floats) -> Flags:
    faults: Flags = np.zeros(len(values), np.bool_)
    with np.errstate(all="ignore"):
        if isinstance(op, ops.SoftCap):
            scalar.soft_cap(values[:, None], op.cap, faults)
        else:
            scalar.activation(values[:, None], op.function, faults)
    return faults


def in_rows(values: Floats, width: int = WIDTH) -> Floats:
    """Return the values in rows of `width`; the last is filled up with the first values."""
    rows = -(-len(values) // width)
    return np.resize(values, rows * width).reshape(rows, width)
