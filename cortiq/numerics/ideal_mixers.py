"""Plain float64 formulas of matmul, attention, convolution and delta net.

Errors of the contract's functions are stated against these; they take the same operands.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.numerics.codes import Codes
from cortiq.numerics.quantise import Quantised

Doubles = npt.NDArray[np.float64]


def dequantise_ideal(x: Quantised) -> Doubles:
    """q·2^e in float64, exact."""
    return x.q * np.exp2(x.e.astype(np.float64))[..., None]


def weight_ideal(weight: Codes) -> Doubles:
    """scale·code [+ minimum·offset] in float64 [N, K]."""
    columns = weight.codes.shape[1]
    scale = np.repeat(weight.scale.astype(np.float64), weight.block, axis=1)[:, :columns]
    values = scale * weight.codes
    if weight.offsets is None or weight.minimum is None:
        return values
    minimum = np.repeat(weight.minimum.astype(np.float64), weight.block // weight.sub, axis=1)
    return values + np.repeat(minimum * weight.offsets, weight.sub, axis=1)


def matmul_ideal(x: Quantised, weight: Codes) -> Doubles:
    """x·Wᵀ of the dequantised operands, float64 [rows, N]."""
    return dequantise_ideal(x) @ weight_ideal(weight).T


def matmul_error_scale(x: Quantised, weight: Codes) -> Doubles:
    """Σ_b (|I_b·scale_b| + |J_b·minimum_b|)·2^e, which the matmul's error bound multiplies."""
    total = np.zeros((len(x.q), len(weight.codes)))
    for block in range(weight.scale.shape[1]):
        part = weight.columns(*_block_edges(weight, block))
        q = x.q[:, slice(*_block_edges(weight, block))]
        here = Quantised(q, x.e)
        code_part = part._replace(offsets=None, minimum=None)
        total += np.abs(matmul_ideal(here, code_part))
        if part.minimum is not None:
            low = part._replace(codes=np.zeros_like(part.codes))
            total += np.abs(matmul_ideal(here, low))
    return total


def _block_edges(weight: Codes, block: int) -> tuple[int, int]:
    return block * weight.block, min((block + 1) * weight.block, weight.codes.shape[1])
