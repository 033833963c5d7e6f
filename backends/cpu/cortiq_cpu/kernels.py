"""Which primitives there are kernels for, and what these do not do."""

from __future__ import annotations

from cortiq.ir import Graph, Node, Program, ops
from cortiq.numerics import scalar

SCALED = (
    ops.Gain, ops.ScaleRows, ops.Shift, ops.Clamp, ops.Softmax, ops.ExpertGain, ops.ExpertBias,
)  # fmt: skip
"""Those of one kernel: what is done to a part of a row, by a number."""
KERNELS = (
    ops.EmbedRows, ops.Quantise, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul, ops.Add,
    ops.Multiply, ops.Scale, ops.Bias, ops.Activation, ops.SoftCap, ops.RMSNorm, ops.LayerNorm,
    ops.Rope, ops.StoreKV, ops.Attend, ops.CausalConv, ops.Route, ops.CombineExperts, ops.Slice,
    ops.Concat, ops.Reshape, ops.L2Norm, ops.DeltaRule, ops.StateSpace, ops.ChooseBlocks,
    ops.Recall, *SCALED,
)  # fmt: skip
"""Primitives with a kernel."""
POSITIONED = (ops.Rope, ops.Attend, ops.ChooseBlocks, ops.Recall)
"""Those that take positions."""
OPTIONS = frozenset({
    *scalar.ACTIVATIONS, "groups", "mask", "tau", "missing", "step", "sections", "blocks",
    "keys only", "until",
})  # fmt: skip
"""What the kernels know beyond the plain form of an operator."""

CHOICE_BYTES = 1 << 20
"""Scratch that one query's choice of blocks may take."""


def _choice_bytes(op: ops.ChooseBlocks) -> int:
    """Both planes of q, and a score and an index for each block kept."""
    return 4 * op.key_dim + 8 * op.top


def refusal(node: Node, graph: Graph, program: Program) -> str:
    """Why a primitive is declined; empty if it is not."""
    if type(node.op) not in KERNELS:
        return f"no kernel for {node.op.kind}"
    if isinstance(node.op, ops.EmbedRows) and node.inputs != ("token",):
        return "rows of a table are looked up for the row's token only"
    if isinstance(node.op, POSITIONED) and not _where_rows_are(node, graph):
        return f"{node.op.kind} is computed at positions that rows have or supply only"
    if isinstance(node.op, ops.ChooseBlocks) and _choice_bytes(node.op) > CHOICE_BYTES:
        return f"no kernel for ChooseBlocks of {node.op.top} blocks"
    unknown = sorted(node.op.options() - OPTIONS)
    return f"no kernel for {node.op.kind} with {', '.join(unknown)}" if unknown else ""


def _where_rows_are(node: Node, graph: Graph) -> bool:
    """Whether the host knows the node's positions before a batch runs."""
    supplied = getattr(node.op, "until", False) or getattr(node.op, "sections", None)
    position = node.inputs[0 if isinstance(node.op, ops.Recall) else 1]
    return position in (graph.inputs if supplied else ("position",))
