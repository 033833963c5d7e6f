"""Inputs of every kernel, hostile ones first, and the bits `cortiq.numerics` gives for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cortiq.numerics import norms, scalar
from cortiq.numerics.contract import F32, Floats, Ints, round_to_f32, snap
from cortiq.numerics.digest import digest
from cortiq.numerics.philox import philox
from cortiq.numerics.quantise import planes, quantise_rows
from cortiq.numerics.rope import RopeTable, apply_rope
from cortiq.numerics.sums import canonical_sum
from stacks.base import Case
from stacks.vectors_products import attention_cases, matmul_cases

Generator = np.random.Generator
LARGEST = np.nextafter(F32(2**50), F32(0))


def exponent_ladder() -> Floats:
    """Every canonical exponent with the mantissas 0, 1, a middle one and the largest."""
    exponents = np.arange(127 - 40, 127 + 50, dtype=np.int32) << np.int32(23)
    mantissas = np.array([0, 1, 0x2AAAAA, 0x7FFFFF], np.int32)
    values = (exponents[:, None] + mantissas).ravel().view(F32)
    return np.concatenate([values, -values])


def edges() -> Floats:
    """±0, 2⁻⁴⁰ and the largest canonical value, ±1 and its neighbours."""
    values = np.array([0, 2**-40, 1, 3, 2**22, 2**24, 2**50], F32)
    near = np.concatenate(
        [np.nextafter(values[1:], F32(0)), values[:-1], np.nextafter(F32(1), F32(2))[None]]
    )
    near = near[(near == 0) | (near >= F32(2**-40))]
    return np.concatenate([near, -near]).astype(F32)


def canonical(rng: Generator, *shape: int, low: float = -39, high: float = 40) -> Floats:
    """Random canonical values, exponents spread evenly over [low, high)."""
    sizes = np.exp2(rng.uniform(low, high, shape))
    return snap((sizes * rng.choice([-1.0, 1.0], shape)).astype(F32))


def awkward(rng: Generator, n: int) -> Floats:
    """Ladder, edges, and n random values."""
    return np.concatenate([exponent_ladder(), edges(), canonical(rng, n)])


def pairs(rng: Generator, n: int) -> tuple[Floats, Floats]:
    """Awkward values against shuffled ones, against themselves negated, and near each other."""
    a = awkward(rng, n)
    near = a * (F32(1) + rng.integers(-8, 9, a.size).astype(F32) * F32(2**-23))
    left = np.concatenate([a, a, a])
    return left, np.concatenate([rng.permutation(a), -a, snap(np.clip(near, -LARGEST, LARGEST))])


def hard_quotients(rng: Generator, n: int) -> tuple[Floats, Floats]:
    """Mantissas whose quotient lies as close to a rounding boundary as any can."""
    found = []
    for divisor in map(int, rng.integers(1 << 23, 1 << 24, n) | 1):
        for shift in (23, 24):
            inverse = pow(pow(2, shift, divisor), -1, divisor)
            for rest in ((divisor - 1) // 2, (divisor + 1) // 2, 1, divisor - 1):
                dividend = rest * inverse % divisor
                if dividend >= 1 << 23:
                    found.append((dividend, divisor))
    a, b = np.array(found, np.int64).T
    return a.astype(F32), b.astype(F32)


def ties(rng: Generator, n: int) -> Floats:
    """Halves, their neighbours, and random values of magnitude below 2²²."""
    halves = np.concatenate([np.arange(-1000, 1000), rng.integers(-(2**22), 2**22 - 1, n)])
    halves = halves.astype(F32) + F32(0.5)
    near = np.concatenate([np.nextafter(halves, F32(0)), halves])
    return np.concatenate([near, rng.uniform(-(2**22), 2**22, n).astype(F32), [F32(0)]]).astype(F32)


def activations(rng: Generator, n: int, largest: float = 100) -> Floats:
    """Arguments of exp, sigmoid and their kin: tiny, ordinary and large, both signs, the edges."""
    parts = [rng.uniform(-largest, largest, n), rng.standard_normal(n), canonical(rng, n, high=6)]
    return np.concatenate([*parts, edges()[np.abs(edges()) < 2**22]]).astype(F32)


def integers(rng: Generator, n: int, bound: int) -> Ints:
    """Random integers over (−bound, bound), spread evenly and by size, and the bounds."""
    spread = (np.exp2(rng.uniform(0, np.log2(bound), n)) * rng.choice([-1, 1], n)).astype(np.int64)
    ends = np.array([0, 1, -1, bound - 1, 1 - bound, bound // 2, -bound // 2])
    return np.concatenate([rng.integers(1 - bound, bound, n), spread, ends]).astype(np.int32)


def binary_cases(rng: Generator, n: int) -> Iterator[Case]:
    """+, ×, ÷ on pairs; quotients near a rounding boundary."""
    a, b = pairs(rng, n)
    yield Case("add", "pairs", (a, b), (a + b,))
    yield Case("multiply", "pairs", (a, b), (a * b,))
    inside = (b != 0) & (a != 0)
    a, b = a[inside], b[inside]
    yield Case("divide", "pairs", (a, b), (a / b,))
    a, b = hard_quotients(rng, n // 8)
    yield Case("divide", "near a boundary", (a, b), (a / b,))


def unary_cases(rng: Generator, n: int) -> Iterator[Case]:
    """Square root, rint, the float of an integer, and the transcendental functions."""
    x = np.abs(awkward(rng, n))
    x = x[x > 0]
    yield Case("sqrt", "ladder", (x,), (np.sqrt(x),))
    x = ties(rng, n)
    yield Case("rint", "ties", (x,), (np.rint(x) + F32(0),))
    i = integers(rng, n, 2**24 + 1)
    yield Case("to_float", "exact", (i,), (i.astype(F32),))
    i = integers(rng, n, 2**31)
    yield Case("to_float", "rounded", (i,), (round_to_f32(i.astype(np.int64)),))
    x = -np.abs(activations(rng, n))
    yield Case("exp", "negative", (x,), (scalar.exp(x),))
    x = rng.uniform(-0.5, 0.5, n).astype(F32)
    x = np.concatenate([x, canonical(rng, n, low=-40, high=-1), [F32(0.5), F32(-0.5)]]).astype(F32)
    yield Case("exp2g", "half turns", (x,), (scalar.exp2_fraction(x),))
    x = np.abs(awkward(rng, n))
    x = np.concatenate([x[x > 0], rng.uniform(0.5, 2, n).astype(F32), [F32(1)]])
    yield Case("log", "ladder and near 1", (x,), (scalar.log(x),))
    for name in ("sigmoid", "silu", "gelu_tanh", "tanh", "softplus"):
        x = activations(rng, n)
        yield Case(name, "both signs", (x,), (getattr(scalar, name)(x),))


def rounding_cases(rng: Generator, n: int) -> Iterator[Case]:
    """RN(I) from two planes, three planes and one int32, up to their bounds."""
    high, low = (rng.permutation(integers(rng, n, 2**29)) for _ in range(2))
    total = high.astype(np.int64) * 256 + low
    yield Case("round_two_planes", "bounds", (high, low), (round_to_f32(total),))
    middle = rng.permutation(integers(rng, n, 2**30))
    total = high.astype(np.int64) * 65536 + middle.astype(np.int64) * 256 + low
    yield Case("round_three_planes", "bounds", (high, middle, low), (round_to_f32(total),))
    i = integers(rng, n, 2**31)
    yield Case("round_int32", "whole range", (i,), (round_to_f32(i.astype(np.int64)),))


def hostile_rows(rng: Generator, rows: int, n: int) -> Floats:
    """Rows of many scales; tied, empty, tiny, sparse and extreme ones first."""
    sizes = np.exp2(rng.uniform(-30, 30, (rows, 1)))
    x = snap((rng.standard_normal((rows, n)) * sizes).astype(F32))
    x[0], x[1], x[2] = 0, 2**-40, np.nextafter(F32(2**50), F32(0))
    x[3] = rng.integers(-65024, 65025, n) / 2  # quantised at e = 0: every second value is a tie
    x[4] = exponent_ladder()[rng.integers(0, 8 * 90, n)]
    x[5, 1:] = 0
    x[6] = (rng.standard_normal(n).astype(F32).view(np.int32) & np.int32(-65536)).view(F32)
    x[7] = np.clip(x[7], -8, 8)
    x[7, -1] = 32512 * 2**-3  # the largest maximum of its exponent
    x[8] = x[7]
    x[8, -1] = np.nextafter(x[7, -1], F32(np.inf))  # and the smallest of the next
    return x


def row_cases(rng: Generator, rows: int) -> Iterator[Case]:
    """snap, quantised rows, sums, RMSNorm, argmax."""
    threshold = np.array([2**-40, -(2**-40), 2**50, -(2**50), np.inf, np.nan, 0], F32)
    near = [np.nextafter(threshold, F32(s)) for s in (0, np.inf, -np.inf)]
    x = hostile_rows(rng, max(rows, 9), 300)
    x[7, :28] = np.concatenate([threshold, *near]) * F32(1)
    x[6, :7] = np.float32(-0.0)
    x[5, :4] = [2**-40, np.nextafter(F32(2**-40), F32(0)), -(2**-41), 1e-38]
    faults = np.zeros(len(x), bool)
    yield Case("snap", "edges and faults", (x,), (snap(x, faults), faults))
    for n in (1, 64, 576, 1000):
        x = hostile_rows(rng, max(rows, 9), n)
        row = quantise_rows(x)
        yield Case("quantise_rows", f"{n} columns", (x,), (*planes(row.q), row.e))
        yield Case("canonical_sum", f"{n} columns", (x,), (canonical_sum(x),))
        weight, eps = canonical(rng, n, low=-3, high=3), np.array([1e-5], F32)
        small = x * (np.abs(x) < 2**20)
        yield Case(
            "rms_norm", f"{n} columns", (small, weight, eps), (norms.rms_norm(small, weight, 1e-5),)
        )
        x = x.copy()
        x[0], x[3, n // 2 :] = -1, x[3].max()
        yield Case("argmax", f"{n} columns", (x,), (x.argmax(-1).astype(np.int32),))


def rope_cases(rng: Generator, rows: int) -> Iterator[Case]:
    """Both pairings, whole and partial rotary dimensions, tables at far positions."""
    for half, heads, width, pairs in ((True, 3, 64, 32), (False, 2, 64, 32), (True, 2, 48, 8)):
        x = canonical(rng, rows, heads, width, low=-35, high=30)
        x[0] = 0
        cos, sin = RopeTable(10000.0, 2 * pairs).compute(rng.integers(0, 131072, rows))
        expected = apply_rope(x, cos, sin, "half" if half else "interleaved")
        label = f"{'half' if half else 'interleaved'}, {pairs} pairs of {width}"
        yield Case("rope", label, (x, cos, sin), (expected,), {"half": half})


def word_cases(rng: Generator, n: int) -> Iterator[Case]:
    """Philox (the published vectors first) and the digest."""
    counters = rng.integers(0, 1 << 32, (n, 4), np.uint32)
    keys = rng.integers(0, 1 << 32, (n, 2), np.uint32)
    counters[0], keys[0], counters[1], keys[1] = 0, 0, 0xFFFFFFFF, 0xFFFFFFFF
    words = [philox(tuple(c), (int(k[0]), int(k[1]))) for c, k in zip(counters, keys, strict=True)]
    yield Case("philox", "words", (counters, keys), (np.array(words, np.uint32),))
    for count in (1, 255, n + 37):
        x = canonical(rng, count)
        yield Case("digest", f"{count} values", (x,), (np.array(digest(x), np.uint32),))


def cases(size: int = 1, seed: int = 0) -> list[Case]:
    """Every case; `size` multiplies the number of random values (1 is what the tests run)."""
    rng = np.random.default_rng(seed)
    builders: list[Callable[[], Iterator[Case]]] = [
        lambda: binary_cases(rng, 1024 * size),
        lambda: unary_cases(rng, 1024 * size),
        lambda: rounding_cases(rng, 1024 * size),
        lambda: row_cases(rng, 8 * size),
        lambda: rope_cases(rng, 8 * size),
        lambda: word_cases(rng, 1024 * size),
        lambda: matmul_cases(rng, size),
        lambda: attention_cases(rng, size),
    ]
    return [case for build in builders for case in build()]
