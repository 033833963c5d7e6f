"""The primitives: what a backend must compute, each defined to the bit in `cortiq.numerics`.

A backend that has all of them has every layer. Inputs and outputs are per row; the order of float
steps is that of the function named in each docstring. `docs/ir.md` lists them with the primitives
that later operators bring.
"""

from __future__ import annotations

from cortiq.ir.op import Op
from cortiq.ir.ops.elementwise import (
    Activation,
    Add,
    Bias,
    Concat,
    LayerNorm,
    Multiply,
    Reshape,
    RMSNorm,
    Scale,
    Slice,
    SoftCap,
)
from cortiq.ir.ops.matrices import (
    CombineExperts,
    EmbedRows,
    ExpertMatMul,
    HeadMatMul,
    MatMul,
    Quantise,
    Route,
)
from cortiq.ir.ops.sequence import (
    Attend,
    CausalConv,
    Rope,
    StoreKV,
)

PRIMITIVES: tuple[type[Op], ...] = (
    EmbedRows, Quantise, MatMul, HeadMatMul, ExpertMatMul, Add, Multiply, Scale, Bias, Activation,
    SoftCap, RMSNorm, LayerNorm, Rope, StoreKV, Attend, CausalConv, Route, CombineExperts, Slice,
    Concat, Reshape,
)  # fmt: skip
"""Every primitive a backend can be asked for."""

__all__ = [
    "PRIMITIVES",
    "Activation",
    "Add",
    "Attend",
    "Bias",
    "CausalConv",
    "CombineExperts",
    "Concat",
    "EmbedRows",
    "ExpertMatMul",
    "HeadMatMul",
    "LayerNorm",
    "MatMul",
    "Multiply",
    "Quantise",
    "RMSNorm",
    "Reshape",
    "Rope",
    "Route",
    "Scale",
    "Slice",
    "SoftCap",
    "StoreKV",
]
