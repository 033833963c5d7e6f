"""The kernels: those of all libraries with float64, and one layer as a whole."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cortiq.backend.array_kernels import product
from cortiq.backend.float64 import FLOAT64_KERNELS, FLOAT64_OPTIONS
from cortiq.backend.float_weights import MATRICES, float_weight
from cortiq.backend.kernel_backend import KernelTable
from cortiq.backend.kernel_walk import KernelCall as Call
from cortiq.backend.matrices import Float64Matrix
from cortiq.ir import Op, layers
from cortiq.numerics.layouts import Weight
from cortiq_torch.array_library import TorchArrays


def prepare(library: TorchArrays, op: Op, role: str, weight: Weight, name: str) -> Any:
    """Convert a weight for the kernel of `op`: to a matrix, or a tensor of floats."""
    if isinstance(op, MATRICES) or (isinstance(op, layers.GatedMLP) and "bias" not in role):
        return Float64Matrix(library, weight, name)
    return library.array(float_weight(op, role, weight, name))


def _gated_mlp(call: Call, x: Tensor) -> Tensor:
    """Compute a layer as a whole: its primitives one after the other."""
    library, faults = call.library, call.faults

    def linear(role: str, x: Tensor) -> Tensor:
        matrix, bias = call.weights[role], call.weights.get(f"{role}_bias")
        y = product(library, matrix, x if matrix.floating else library.quantised(x), faults)
        return y if bias is None else library.snap(y + bias, faults)

    gate = library.snap(library.activation(call.op.activation, linear("gate", x)), faults)
    return linear("down", library.snap(gate * linear("up", x), faults))


TABLE = KernelTable(FLOAT64_KERNELS, FLOAT64_OPTIONS, {layers.GatedMLP: _gated_mlp})
"""The kernel of every primitive, and of one layer."""
