"""Cosines and sines of float32 angles of any size: integers and float32 in a written order.

An angle of magnitude t below ¾ is its own remainder, in quarter 0. Otherwise t = m·2^k with m of
24 bits; w = ⌊2^(64+k)/2π⌋ mod 2⁶⁴, from bits of 1/2π that are constants; p = m·w mod 2⁶⁴ is the
angle in 64-bit fractions of a turn. Its nearest quarter is q = ((p + 2⁶¹) mod 2⁶⁴) >> 62, the
remainder (p − q·2⁶² as a signed integer) >> 32, rounded to float32, times RN(2π·2⁻³²).
"""

from __future__ import annotations

import numpy as np

from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.scalar import horner

PHASE_MAX_ERROR = 2.0**-23
"""Largest |error| of a cosine or sine."""
SMALL = F32(0.75)
HIGH = 174992710547
"""⌊2⁴⁰/2π⌋."""
LOW = 5224920209934711358
"""The next 63 bits of 1/2π."""
TURN = F32(1.4629180792671596e-09)
"""2π·2⁻³², rounded."""
SINE = (F32(-1.9515295891e-4), F32(8.3321608736e-3), F32(-1.6666654611e-1))
COSINE = (F32(2.443315711809948e-5), F32(-1.388731625493765e-3), F32(4.166664568298827e-2))


def phase_features(x: Floats) -> Floats:
    """Return (cos x, sin x) side by side over the last axis: float32 [..., n] to [..., 2n].

    With r the remainder and z = RN(r·r): s = RN(RN(RN(horner(z, SINE)·z)·r) + r);
    c = RN(RN(1 − RN(½·z)) + RN(horner(z, COSINE)·RN(z·z))). Quarters 1, 2 and 3 give (−s, c),
    (−c, −s) and (s, −c); the sine has the angle's sign. snap.
    """
    bits = np.ascontiguousarray(x, F32).view(np.int32)
    magnitude = bits & np.int32(0x7FFFFFFF)
    t = magnitude.view(F32)
    small = t < SMALL
    shift = np.maximum((magnitude >> 23).astype(np.int64) - 126, 0)  # k + 24
    mantissa = ((magnitude & 0x7FFFFF) | 0x800000).astype(np.int64)
    word = (np.int64(HIGH) << shift) | (np.int64(LOW) >> (63 - shift))
    p = mantissa * word
    quarter = np.where(small, 0, ((p + np.int64(1 << 61)) >> 62) & 3)
    rest = (p - (quarter << 62)) >> 32
    r = np.where(small, t, rest.astype(F32) * TURN)
    z = r * r
    s = (horner(z, SINE) * z) * r + r
    c = (F32(1) - F32(0.5) * z) + horner(z, COSINE) * (z * z)
    odd = (quarter & 1) == 1
    cos, sin = np.where(odd, s, c), np.where(odd, c, s)
    cos = np.where((quarter == 1) | (quarter == 2), -cos, cos)
    sin = np.where((quarter >= 2) != (bits < 0), -sin, sin)
    return snap(np.concatenate([cos, sin], axis=-1))
