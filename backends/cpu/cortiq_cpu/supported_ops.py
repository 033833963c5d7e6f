"""Primitives that have a native kernel, and the options that these support."""

from __future__ import annotations

from cortiq.backend.support import no_kernel, unplaced
from cortiq.ir import Graph, Node, Program, ops
from cortiq.numerics import scalar
from cortiq.numerics.contract import TILE

SCALED = (
    ops.Gain, ops.ScaleRows, ops.Shift, ops.Clamp, ops.Softmax, ops.ExpertGain, ops.ExpertBias,
    ops.Sinkhorn, ops.KeepListed, ops.ListKeys, ops.Permute, ops.IndexSelect,
    ops.StackIndex, ops.WindowBlocks,
)  # fmt: skip
"""Those of one kernel: what is done to a part of a row, by a number."""
KERNELS = (
    ops.EmbedRows, ops.Quantise, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul, ops.Add,
    ops.Multiply, ops.Scale, ops.Bias, ops.Activation, ops.SoftCap, ops.RMSNorm, ops.LayerNorm,
    ops.Rope, ops.StoreKV, ops.Attend, ops.CausalConv, ops.Route, ops.CombineExperts, ops.Slice,
    ops.Concat, ops.Reshape, ops.L2Norm, ops.DeltaRule, ops.DiagonalDeltaRule,
    ops.StateSpace, ops.ChooseBlocks,
    ops.Recall, ops.ChooseKeys, ops.OwnBlock, ops.Compress, ops.HashNGrams, *SCALED,
)  # fmt: skip
"""Primitives with a kernel."""
OPTIONS = frozenset({
    *scalar.ACTIVATIONS, "groups", "mask", "tau", "missing", "step", "sections", "blocks",
    "keys only", "until", "mass", "every", "slopes", "sqrt_softplus", "sparse_mixer",
})  # fmt: skip
"""What the kernels know beyond the plain form of an operator."""

CHOICE_BYTES = 1 << 20
"""Scratch that one query's choice of blocks or keys may take."""


def _choice_bytes(op: ops.ChooseBlocks) -> int:
    """Count the bytes of both planes of q, and of a score and an index for each block kept."""
    return 4 * op.key_dim + 8 * op.top


def _score_bytes(op: ops.ChooseKeys) -> int:
    """Count the bytes of both planes of all heads' q, and of their scores of a tile's keys."""
    return op.heads * 4 * (op.key_dim + 1 + TILE)


def refusal(node: Node, graph: Graph, program: Program) -> str:
    """Return the reason why a primitive is declined; empty if it is not."""
    op = node.op
    if isinstance(op, ops.ChooseBlocks) and _choice_bytes(op) > CHOICE_BYTES:
        return f"no kernel for ChooseBlocks of {op.top} blocks"
    if isinstance(op, ops.ChooseKeys) and _score_bytes(op) > CHOICE_BYTES:
        return f"no kernel for ChooseKeys with {op.heads} heads of {op.key_dim}"
    return no_kernel(op, KERNELS, OPTIONS) or unplaced(node, graph, program)
