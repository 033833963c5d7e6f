"""The digest chain: one hash that stands for every logit of a generated stream."""

from __future__ import annotations

import hashlib
import struct

from cortiq.numerics.digest import Digest

START = bytes(32)
"""The chain before the first step."""


def chain(previous: bytes, words: Digest) -> bytes:
    """SHA-256 of the previous link and the digest of the step's logits.

    Parameters
    ----------
    previous : 32 bytes: `START`, or what the step before gave.
    words : the contract's digest (`numerics.digest`); hashed as four little-endian 32-bit words.
    """
    return hashlib.sha256(previous + struct.pack("<4I", *words)).digest()
