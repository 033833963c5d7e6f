"""Codes, scales and minima of four bits in the order of GGUF's blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortiq.numerics.blockquants import BLOCK
from cortiq.numerics.contract import Floats
from cortiq.numerics.kquants import BLOCK as WIDE
from cortiq.numerics.unpacked_weights import Bytes

SUBS = WIDE // BLOCK


def nibbles_of(codes: Floats, run: int) -> Bytes:
    """Pack codes [..., 2·run]: the first run in low nibbles, the second in high ones."""
    whole = codes.astype(np.uint8)
    return whole[..., :run] | (whole[..., run:] << np.uint8(4))


def _six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    """Pack eight 6-bit scales and minima [n, 8] as Q4_K does, uint8 [n, 12]."""
    early = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    late = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    return np.concatenate([early, late, scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4], axis=1)


def pack_q4_k(halves: Sequence[Bytes], parts: Sequence[Bytes], codes: Floats) -> Bytes:
    """Return blocks of Q4_K, uint8 [n, 144], of d and dmin as byte pairs, two times eight integers
    of six bits, and codes [n, 256].
    """
    nibbles = nibbles_of(codes.reshape(-1, SUBS // 2, 2 * BLOCK), BLOCK).reshape(len(codes), -1)
    return np.concatenate([*halves, _six_bits(*parts), nibbles], axis=1)
