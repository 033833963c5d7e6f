"""Quantised rows as kernels take them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Rows(NamedTuple):
    """Quantised rows x ≈ q·2^e: q float64 [..., K], which holds integers, and e int32 [...]."""

    q: Tensor
    e: Tensor
