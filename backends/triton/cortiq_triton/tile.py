"""A tile of 64 keys as a pure function of its query: integer sums and integer exponents.

Arithmetic is cut to what the contract's bits need; why each shorter form gives the same bits is
said where it stands. A float t = 1.5·2²³ + n, |n| < 2²², holds the integer n in its lowest bits:
`bits(t)` = MAGIC_BITS + n, so that rounding, conversion and comparison are one addition.
"""

from __future__ import annotations

import triton.language as tl

from cortiq_triton.language import Tensor, constant, device
from cortiq_triton.scalar import exp2_int, exp2g, round_three_planes, tanh

NONE = constant(-(1 << 20))
"""Exponent of an empty state, below every real one."""
MAGIC = constant(12582912.0)
MAGIC_BITS = constant(0x4B400000)
LIMIT = constant(16384.0)
"""Scores are clamped here."""
FORGET = constant(-60)
VANISHED = constant(-80)
"""Weights at most 2^(VANISHED + 22) are rounded to 0, as those below FORGET are."""
DEEPEST = constant(256)
"""Length of a dot up to which `rounded` takes its planes."""


@device
def rounded(high: Tensor, middle: Tensor, low: Tensor) -> Tensor:
    """RN(high·65536 + middle·256 + low)·2⁻¹⁶ of dots of at most 256 terms.

    Planes are at most 127·127, 2·127·128 and 128·128 a term: middle·256 + low stays below 2³¹, and
    high with what that carries below 2²². Both summands of the last addition are exact (the second
    is 128 + (rest mod 65536)·2⁻¹⁶), so that it is the one rounding.
    """
    rest = (middle << 8) + low
    whole = (high + MAGIC_BITS) + (rest >> 16)
    part = (rest & 0xFFFF) | 0x43000000
    return (whole.to(tl.float32, bitcast=True) - 12583040.0) + part.to(tl.float32, bitcast=True)


@device
def dot_planes(
    ah: Tensor, al: Tensor, bh: Tensor, bl: Tensor, M: tl.constexpr, N: tl.constexpr,
    SHORT: tl.constexpr,
) -> Tensor:  # fmt: skip
    """RN of the integer dots of (ah, al) and (bh, bl), [M, N]; times 2⁻¹⁶ if they are SHORT."""
    nothing = tl.full((M, N), 0, tl.int32)
    low = tl.dot(al, bl, nothing, out_dtype=tl.int32)
    middle = tl.dot(ah, bl, nothing, out_dtype=tl.int32)
    middle = tl.dot(al, bh, middle, out_dtype=tl.int32)
    high = tl.dot(ah, bh, nothing, out_dtype=tl.int32)
    return rounded(high, middle, low) if SHORT else round_three_planes(high, middle, low)


@device
def delta(n: Tensor, shift: tl.constexpr = 0) -> Tensor:
    """2^(n + shift), or 0 where n is below −60."""
    return tl.where(n < FORGET, 0.0, exp2_int(tl.maximum(n, FORGET) + shift))


@device
def empty(BM: tl.constexpr, WIDTH: tl.constexpr) -> tuple[Tensor, Tensor]:
    """Sums [BM, WIDTH] of no tile, and their exponents [BM, 1]."""
    return tl.full((BM, WIDTH), 0.0, tl.float32), tl.full((BM, 1), NONE, tl.int32)


@device
def rescaling(m: Tensor, n: Tensor, shift: tl.constexpr = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Factors that bring sums at the exponents m and n (this times 2^shift) to one, and that."""
    top = tl.maximum(m, n)
    return delta(m - top), delta(n - top, shift), top


@device
def combine(a: Tensor, m: Tensor, b: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """(a·2^m + b·2^n) at the larger exponent of the two, and that exponent."""
    before, after, top = rescaling(m, n)
    return a * before + b * after, top


@device
def weight_of(score: Tensor) -> tuple[Tensor, Tensor]:
    """(MAGIC_BITS + κ, g) with 2^s = g·2^κ, |s| clamped at 16384."""
    s = tl.minimum(tl.maximum(score, -LIMIT), LIMIT)
    t = s + MAGIC
    return t.to(tl.int32, bitcast=True), exp2g(s - (t - MAGIC))


@device
def factors(exponent: Tensor, factor: Tensor, KP: tl.constexpr) -> Tensor:
    """c·2^eq of queries, for dots as `dot_planes` leaves them: [BM, 1].

    c·2^e·2⁻¹⁶ is exact and normal (2⁻⁴⁰ ≤ c < 2⁹, −54 ≤ e ≤ 36), so that (RN(I)·c)·2^(eq+ek) =
    (RN(I)·c·2^eq)·2^ek rounds once and where it did.
    """
    return exp2_int(exponent + (16 if KP <= DEEPEST else 0))[:, None] * factor


@device
def scaled(fraction: Tensor, kappa: Tensor, top: Tensor, places: tl.constexpr) -> Tensor:
    """1.5·2²³ + rint(g·2^(κ − top + places)), by adding to the exponent of g.

    g is within [2^−½, 2^½]: below κ − top = VANISHED as at it, nothing is left.
    """
    shift = (places - top) << 23
    exponent = tl.maximum(kappa, top + VANISHED) << 23
    bits = (fraction.to(tl.int32, bitcast=True) + shift) + exponent
    return bits.to(tl.float32, bitcast=True)


@device
def page_of(table: Tensor, sequence: Tensor, pages: Tensor, tile: Tensor, slot: Tensor) -> Tensor:
    """Start of a slot in the page that holds a tile."""
    return slot_of(tl.load(table + sequence.to(tl.int64) * pages + tile), slot)


@device
def slot_of(address: Tensor, slot: Tensor) -> Tensor:
    """Start of a slot in the page at an address."""
    return tl.multiple_of((address + slot).to(tl.pointer_type(tl.int8)), 16)


@device
def tile_scores(
    page: Tensor, g: Tensor, qh: Tensor, ql: Tensor, factor: Tensor, ke: Tensor, cap: Tensor,
    inverse_cap: Tensor, log2_e: Tensor, steep: Tensor, ahead: Tensor, G: tl.constexpr,
    DK: tl.constexpr, KP: tl.constexpr, BM: tl.constexpr, CAPPED: tl.constexpr,
    SLOPED: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(MAGIC_BITS + κ, g) of a tile's keys, [BM, 64]. factor : [BM, 1]; ke : [64].

    steep, ahead : with SLOPED m and the tile's first position less the query's, [BM].
    """
    t, d = tl.arange(0, 64), tl.arange(0, KP)
    keys = page + (g * 64 + t)[:, None] * DK + d[None, :]
    if DK == KP:
        kh, kl = tl.load(keys), tl.load(keys + G * 64 * DK)
    else:
        inside = (d < DK)[None, :] & (t >= 0)[:, None]
        kh = tl.load(keys, mask=inside, other=0)
        kl = tl.load(keys + G * 64 * DK, mask=inside, other=0)
    dots = dot_planes(qh, ql, tl.trans(kh), tl.trans(kl), BM, 64, KP <= DEEPEST)
    s = (dots * factor) * exp2_int(ke)[None, :]
    if CAPPED:
        s = (cap * tanh(s * inverse_cap)) * log2_e
    if SLOPED:
        s = s + steep[:, None] * (ahead[:, None] + t[None, :]).to(tl.float32)
    return weight_of(s)


@device
def tile_weights(
    kappa: Tensor, fraction: Tensor, ve: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """RN(L), K, E, [BM, 1], and both planes of w, [BM, 64].

    Keys that are not seen have κ near NONE, and so weights of 0.
    """
    epsilon = kappa + ve[None, :]
    K, E = tl.max(kappa, 1)[:, None], tl.max(epsilon, 1)[:, None]
    mass = (scaled(fraction, kappa, K, 21) + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
    L = tl.sum(mass, 1)[:, None].to(tl.float32)
    w = scaled(fraction, epsilon, E, 14)
    low = (w + MAGIC).to(tl.int32, bitcast=True).to(tl.int8)
    high = ((w + (MAGIC + 128.0)).to(tl.int32, bitcast=True) >> 8).to(tl.int8)
    return L, K - MAGIC_BITS, E - MAGIC_BITS, high, low


@device
def tile_values(
    page: Tensor, g: Tensor, high: Tensor, low: Tensor, G: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr, BM: tl.constexpr,
) -> Tensor:  # fmt: skip
    """RN(O)·2⁻¹⁶ of columns FIRST … FIRST + WIDTH − 1, [BM, WIDTH].

    What a page holds past the last key meets weights of 0.
    """
    t, v = tl.arange(0, 64), FIRST + tl.arange(0, WIDTH)
    values = page + 2 * G * 64 * DK + (g * DV + v)[:, None] * 64 + t[None, :]
    if FIRST + WIDTH <= DV:
        vh, vl = tl.load(values), tl.load(values + G * 64 * DV)
    else:
        inside = (v < DV)[:, None] & (t >= 0)[None, :]
        vh = tl.load(values, mask=inside, other=0)
        vl = tl.load(values + G * 64 * DV, mask=inside, other=0)
    return dot_planes(high, low, tl.trans(vh), tl.trans(vl), BM, WIDTH, True)


@device
def tile_exponents(
    page: Tensor, g: Tensor, tile: Tensor, highest: Tensor, G: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Exponents of a tile's keys and values, int32 [64]; 0 past the highest position."""
    t = tl.arange(0, 64)
    at = page + 2 * G * 64 * (DK + DV) + g * 64 + t
    written = tile * 64 + t <= highest
    ke = tl.where(written, tl.load(at).to(tl.int32), 0)
    return ke, tl.where(written, tl.load(at + G * 64).to(tl.int32), 0)


@device
def unseen_away(
    kappa: Tensor, tile: Tensor, position: Tensor, lowest: Tensor, chosen: Tensor,
    BM: tl.constexpr, BLOCK: tl.constexpr, CHOSEN: tl.constexpr,
) -> Tensor:  # fmt: skip
    """κ near NONE where a query [BM] does not see a key. chosen : [BM] pointers to its blocks,
    which ascend."""
    j = tile * 64 + tl.arange(0, 64)
    seen = (j[None, :] <= position[:, None]) & (j[None, :] >= lowest[:, None])
    if BLOCK > 0:
        mine, before = j // BLOCK, tl.full((BM, 64), 0, tl.int32)
        for n in tl.static_range(24):  # how many blocks of the list are lower
            if (8388608 >> n) <= CHOSEN:
                further = before + (8388608 >> n)
                within = seen & (further <= CHOSEN)
                block = tl.load(chosen[:, None] + further - 1, mask=within, other=2147483647)
                before = tl.where(block < mine[None, :], further, before)
        within = seen & (before < CHOSEN)
        seen = within & (tl.load(chosen[:, None] + before, mask=within, other=-1) == mine[None, :])
    return tl.where(seen, kappa, MAGIC_BITS + NONE)
