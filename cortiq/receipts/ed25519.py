"""Weak Ed25519 public keys: points of low order, and non-canonical encodings.

The curve has eight points whose order divides its cofactor. Anybody can make a
signature by such a "key" for any message, and RFC 8032's check passes; it may also pass for a
non-canonical encoding of a point.
"""

from __future__ import annotations

PRIME = 2**255 - 19
"""The field's prime: coordinates are numbers below it."""
SIGN = 1 << 255
"""The bit of an encoding that says which of two points it is; the rest is the coordinate y."""
_ORDER_8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
LOW_ORDER = frozenset({0, 1, PRIME - 1, _ORDER_8, PRIME - _ORDER_8})
"""Coordinates y of the eight points, of order 4, 1, 2, 8 and 8."""
WEAK = "is a key of low order or not canonically encoded: anybody could sign with it"


def is_weak(key: bytes) -> bool:
    """Return whether a public key (32 bytes) is of low order or not canonically encoded."""
    y = int.from_bytes(key, "little") & (SIGN - 1)
    return y in LOW_ORDER or y >= PRIME
