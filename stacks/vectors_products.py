"""Inputs of the matmul and of attention, at the bounds of their integers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cortiq.numerics.attention import LOG2_E_F32, attend, scoring
from cortiq.numerics.codes import Codes
from cortiq.numerics.contract import F32, snap
from cortiq.numerics.matmul import matmul
from cortiq.numerics.quantise import Quantised, planes, quantise_rows
from stacks.base import Array, Case

Generator = np.random.Generator

LAYOUTS = {
    "matmul_w8": (0, 0, -127, 127),
    "matmul_w16": (0, 0, -32512, 32512),
    "matmul_q8_0": (32, 0, -128, 127),
    "matmul_q4_1": (32, 32, 0, 15),
    "matmul_q4_k": (256, 32, 0, 15 * 63),
    "matmul_w8b256": (256, 0, -127, 127),
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
        for columns in (256, 2304) if name.endswith("_k") else (576,):
            x = activations(rng, 5 * size, columns, extreme=False)
            weight = weights(rng, name, 37, columns, extreme=False)
            yield matmul_case(name, f"{columns} columns", x, weight)
        columns = 32768 if block == 0 else 512
        x = activations(rng, 3, columns, extreme=True)
        weight = weights(rng, name, 5, columns, extreme=True)
        yield matmul_case(name, f"bounds, {columns} columns", x, weight)


def cached(x: Array, poison: int = 0) -> tuple[Quantised, tuple[Array, Array, Array]]:
    """Quantised rows, and their planes and exponents followed by rows that must not be used."""
    row = quantise_rows(snap(x.astype(F32)))
    high, low = planes(row.q)
    unused = np.full((poison, *high.shape[1:]), -128, np.int8)
    exponents = np.concatenate([row.e, np.full((poison, *row.e.shape[1:]), 127, np.int32)])
    return row, (np.concatenate([high, unused]), np.concatenate([low, unused]), exponents)


def attention_case(
    rng: Generator, amplitude: float, positions: list[int], *, window: int = 0,
    sinks: bool = False, cap: float | None = None, width: int = 32, heads: int = 4,
) -> Case:  # fmt: skip
    """Queries at some positions over a cache with poisoned rows behind the last one."""
    at, groups = np.array(positions, np.int32), heads // 2
    keys = max(positions) + 1
    q, q_planes = cached(rng.standard_normal((len(at), heads, 32)) * amplitude)
    k, k_planes = cached(rng.standard_normal((keys, groups, 32)) * amplitude, 30)
    sizes = np.exp2(rng.uniform(-9, 3, (keys, groups, 1)))
    sizes[rng.random(sizes.shape) < 0.1] = 0  # zero rows have an exponent of their own
    v, v_planes = cached(rng.standard_normal((keys, groups, width)) * sizes, 30)
    sink = (rng.standard_normal(heads) * 3).astype(F32) if sinks else None
    expected = attend(q, k, v, at, 32**-0.5, window=window, soft_cap=cap, sinks=sink)
    constants = scoring(32**-0.5, cap)
    factors = [constants.factor, LOG2_E_F32, constants.cap, constants.inverse_cap]
    sink = np.zeros(0, F32) if sink is None else sink
    inputs = (*q_planes, *k_planes, *v_planes, at, sink, np.array(factors, F32))
    label = f"amplitude {amplitude}, window {window}, cap {cap}, sinks {sinks}, width {width}"
    return Case("attention", label, inputs, (expected,), {"window": window})


def attention_cases(rng: Generator, size: int) -> Iterator[Case]:
    """Whole and windowed, with and without sinks, from flat scores to one-hot ones."""
    long, windowed = [-1, 0, 5, 63, 64, 130, 1023, 1024, 1100], [0, 99, 100, 163, 200, 201]
    for amplitude in (1, 6, 30)[:size]:
        yield attention_case(rng, amplitude, long, heads=2 * size)
    for amplitude in (1, 6, 30):
        yield attention_case(rng, amplitude, windowed, window=100, sinks=True)
    yield attention_case(rng, 2, [-1, 0, 1, 300], sinks=True, width=16)
    yield attention_case(rng, 6, [3, 70], cap=30.0)
    yield attention_case(rng, 2, list(range(130, 194, 3)), window=70, width=64, heads=2)
