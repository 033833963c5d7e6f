"""Faults of products whose rows choose overlays."""

from __future__ import annotations

import numpy as np

from cortiq.backend.walk import Call
from cortiq.ir import ops
from cortiq.numerics.contract import Floats, Ints
from cortiq.numerics.quantise import Quantised
from cortiq_conformance.faults.kernels import Wrong
from cortiq_reference.kernels import KERNELS


def _first_for_all(call: Call, x: Quantised | Floats, index: Ints) -> Floats:
    """Multiply every row by the one matrix that the first row chooses."""
    if index.shape[1] == 1:
        index = np.broadcast_to(index[:1], index.shape)
    product: Floats = KERNELS[ops.ExpertMatMul](call, x, index)
    return product


WRONG_OVERLAYS: dict[str, Wrong] = {
    "a batch with the overlay of its first row": {ops.ExpertMatMul: _first_for_all},
}
