"""The primitives: what a backend must compute, each defined to the bit in `cortiq.numerics`.

A backend that has all of them has every layer. Inputs and outputs are per row; the order of float
steps is that of the function named in each docstring. `docs/ir.md` lists them and the planned ones.
"""

from __future__ import annotations

from cortiq.ir.op import Op
from cortiq.ir.ops.elementwise import (
    Activation,
    Add,
    Bias,
    Concat,
    IndexSelect,
    Multiply,
    Permute,
    Reshape,
    Scale,
    Slice,
    SoftCap,
)
from cortiq.ir.ops.key_choice import (
    ChooseBlocks,
    ChooseKeys,
    ListKeys,
    OwnBlock,
    WindowBlocks,
)
from cortiq.ir.ops.matrices import (
    CombineExperts,
    EmbedRows,
    ExpertMatMul,
    HeadMatMul,
    KeepListed,
    MatMul,
    Quantise,
    Route,
    StackIndex,
)
from cortiq.ir.ops.norms import L2Norm, LayerNorm, RMSNorm, Sinkhorn, Softmax
from cortiq.ir.ops.recurrent import DeltaRule, DiagonalDeltaRule, StateSpace
from cortiq.ir.ops.scaling import Clamp, ExpertBias, ExpertGain, Gain, ScaleRows, Shift
from cortiq.ir.ops.sequence import (
    Attend,
    CausalConv,
    Compress,
    HashNGrams,
    Recall,
    Rope,
    StoreKV,
)

PRIMITIVES: tuple[type[Op], ...] = (
    EmbedRows, Quantise, MatMul, HeadMatMul, ExpertMatMul, Add, Multiply, Scale, Bias, Activation,
    SoftCap, RMSNorm, LayerNorm, Rope, StoreKV, Attend, CausalConv, Route, CombineExperts, Slice,
    Concat, Reshape, Gain, ScaleRows, Shift, Clamp, L2Norm, Softmax, ExpertGain, ExpertBias,
    DeltaRule, DiagonalDeltaRule, StateSpace, ChooseBlocks, Recall, ChooseKeys, OwnBlock, Sinkhorn,
    Compress, ListKeys, KeepListed, Permute, IndexSelect, StackIndex, WindowBlocks,
    HashNGrams,
)  # fmt: skip
"""Every primitive a backend can be asked for."""

__all__ = [
    "PRIMITIVES",
    "Activation",
    "Add",
    "Attend",
    "Bias",
    "CausalConv",
    "ChooseBlocks",
    "ChooseKeys",
    "Clamp",
    "CombineExperts",
    "Compress",
    "Concat",
    "DeltaRule",
    "DiagonalDeltaRule",
    "EmbedRows",
    "ExpertBias",
    "ExpertGain",
    "ExpertMatMul",
    "Gain",
    "HashNGrams",
    "IndexSelect",
    "HeadMatMul",
    "KeepListed",
    "L2Norm",
    "LayerNorm",
    "ListKeys",
    "MatMul",
    "Multiply",
    "OwnBlock",
    "Permute",
    "Quantise",
    "RMSNorm",
    "Recall",
    "Reshape",
    "Rope",
    "Route",
    "Scale",
    "ScaleRows",
    "Shift",
    "Sinkhorn",
    "Slice",
    "SoftCap",
    "Softmax",
    "StackIndex",
    "StateSpace",
    "StoreKV",
    "WindowBlocks",
]
