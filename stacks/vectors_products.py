"""Inputs of the matmul and of attention, at the bounds of their integers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cortiq.numerics.codes import Codes
from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.matmul import matmul
from cortiq.numerics.quantise import Quantised, planes, quantise_rows
from stacks import _pending
from stacks.base import Array, Case

Generator = np.random.Generator

LAYOUTS = {
    "matmul_w8": (0, 0, -127, 127),
    "matmul_w16": (0, 0, -32512, 32512),
    "matmul_q8_0": (32, 0, -128, 127),
    "matmul_q4_1": (32, 32, 0, 15),
    "matmul_q4_k": (256, 32, 0, 15 * 63),
    "matmul_q6_k": (256, 0, -32 * 128, 31 * 127),
}
"""Block (0: the row), sub-block of the offsets (0: no minimum), and the range of the codes."""


def activations(rng: Generator, rows: int, columns: int, extreme: bool) -> Quantised:
    """Rows of all exponents that 0 < |x| < 2⁵⁰ gives; extreme ones hold ±32512 only."""
    if extreme:
        q = rng.choice(np.array([-32512, 32512], np.int32), (rows, columns))
        q[0], q[1] = 32512, -32512
        return Quantised(q, rng.integers(-54, 10, rows).astype(np.int32))
    x = rng.standard_normal((rows, columns)) * np.exp2(rng.uniform(-20, 20, (rows, 1)))
    x[0] = 0
    return quantise_rows(snap(x.astype(F32)))


def weights(rng: Generator, name: str, rows: int, columns: int, extreme: bool) -> Codes:
    """A weight of a layout; extreme ones hold the ends of the codes' range only."""
    block, sub, low, high = LAYOUTS[name]
    block = block or columns
    codes = rng.integers(low, high + 1, (rows, columns))
    if extreme:
        codes = rng.choice(np.array([low, high]), (rows, columns))
        codes[0], codes[1] = high, low
    blocks = -(-columns // block)
    scale = snap(np.exp2(rng.uniform(-12, -2, (rows, blocks))).astype(F32))
    if not sub:
        return Codes(codes.astype(np.int16), block, scale)
    most = 63 if block == 256 else 1
    offsets = rng.integers(most if extreme else 1, most + 1, (rows, columns // sub))
    minimum = -snap((scale * F32(3)) * rng.uniform(0, 2, scale.shape).astype(F32))
    return Codes(codes.astype(np.int16), block, scale, offsets.astype(np.int32), sub, minimum)


def matmul_case(name: str, label: str, x: Quantised, weight: Codes) -> Case:
    """A case from the contract's operands: planes of both, empty arrays for absent minima."""
    one_plane = np.abs(weight.codes).max() <= 127 or weight.codes.min() == -128
    codes = weight.codes.astype(np.int8)[None]
    if not one_plane:
        codes = np.stack(planes(weight.codes.astype(np.int32)))
    none = np.zeros((0, 0), np.int32)
    offsets = none if weight.offsets is None else weight.offsets
    minimum = none.astype(F32) if weight.minimum is None else weight.minimum
    inputs = (*planes(x.q), x.e, codes, weight.scale, offsets, minimum)
    options = {"block": weight.block, "sub": weight.sub}
    return Case(name, label, inputs, (matmul(x, weight),), options)


def matmul_cases(rng: Generator, size: int) -> Iterator[Case]:
    """Every layout: ordinary values, runs that end early, and the bounds."""
    for name, (block, *_) in LAYOUTS.items():
        for columns in (576, 2304) if block != 256 else (256, 2304):
            x = activations(rng, 5 * size, columns, extreme=False)
            weight = weights(rng, name, 37, columns, extreme=False)
            yield matmul_case(name, f"{columns} columns", x, weight)
        columns = 32768 if block == 0 else 1024
        x = activations(rng, 3, columns, extreme=True)
        weight = weights(rng, name, 5, columns, extreme=True)
        yield matmul_case(name, f"bounds, {columns} columns", x, weight)


def cached(x: Floats, poison: int) -> tuple[Array, Array, Array]:
    """Planes and exponents of rows [..., D]; the last `poison` rows are never to be used."""
    row = quantise_rows(x)
    high, low = planes(row.q)
    for unused in (high[len(x) - poison :], low[len(x) - poison :]):
        unused[...] = -128
    row.e[len(x) - poison :] = 127
    return high, low, row.e


def attention_case(
    rng: Generator, amplitude: float, window: int, sinks: bool, positions: list[int]
) -> Case:
    """Queries at some positions over a cache with poisoned rows behind the last one."""
    T, H, G, D, poison = len(positions), 4, 2, 32, 30
    S = max(positions) + 1 + poison
    q = (rng.standard_normal((T, H, D)) * amplitude).astype(F32)
    k = (rng.standard_normal((S, G, D)) * amplitude).astype(F32)
    v = rng.standard_normal((S, G, D)) * np.exp2(rng.uniform(-9, 3, (S, G, 1)))
    sink = (rng.standard_normal(H) * 3).astype(F32) if sinks else np.zeros(0, F32)
    at = np.array(positions, np.int32)
    expected = _pending.attention(q, k, v.astype(F32), at, D**-0.5, window, sink if sinks else None)
    factors = np.array([F32(np.float64(D**-0.5) * np.log2(np.e)), F32(np.log2(np.e))])
    inputs = (*cached(q, 0), *cached(k, poison), *cached(v.astype(F32), poison), at, sink, factors)
    label = f"amplitude {amplitude}, window {window}" + (", sinks" if sinks else "")
    return Case("attention", label, inputs, (expected,), {"window": window})


def attention_cases(rng: Generator, size: int) -> Iterator[Case]:
    """Whole and windowed, with and without sinks, from flat scores to one-hot ones."""
    long = [0, 5, 63, 64, 130, 1023, 1024, 1100]
    for amplitude in (1, 6, 30)[: 2 + size]:
        yield attention_case(rng, amplitude, 0, False, long)
        yield attention_case(rng, amplitude, 100, True, [0, 99, 100, 163, 200, 201])
    yield attention_case(rng, 2, 0, True, [0, 1, 700])
    yield attention_case(rng, 2, 70, False, list(range(130, 194, 3)))
