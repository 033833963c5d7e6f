"""Which primitives there are kernels for, and what these do not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortiq.ir import Graph, Node, Program, ops

KERNELS = (
    ops.EmbedRows, ops.Quantise, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul, ops.Add,
    ops.Multiply, ops.Scale, ops.Bias, ops.Activation, ops.SoftCap, ops.RMSNorm, ops.LayerNorm,
    ops.Rope, ops.StoreKV, ops.Attend, ops.CausalConv, ops.Route, ops.CombineExperts, ops.Slice,
    ops.Concat, ops.Reshape,
)  # fmt: skip
"""Primitives with a kernel."""
FUNCTIONS = ("silu", "gelu_tanh", "sigmoid", "tanh", "softplus", "relu", "relu2")


def refusal(node: Node, graph: Graph, program: Program) -> str:
    """Why a primitive is declined; empty if it is not."""
    if type(node.op) not in KERNELS:
        return f"no kernel for {node.op.kind}"
    if isinstance(node.op, ops.EmbedRows) and node.inputs != ("token",):
        return "rows of a table are looked up for the row's token only"
    if isinstance(node.op, ops.Rope | ops.Attend) and node.inputs[1] != "position":
        return f"{node.op.kind} is computed at the row's position only"
    return _option(node)


def _option(node: Node) -> str:
    """The option of a primitive that its kernel does not know, if it is used."""
    op: Any = node.op
    known: Callable[[], bool] = {
        ops.Activation: lambda: op.function in FUNCTIONS,
        ops.Slice: lambda: op.step == 1,
        ops.Rope: lambda: op.sections is None,
        ops.EmbedRows: lambda: not op.missing,
        ops.Route: lambda: not op.masked and op.router.groups == 1 and op.router.tau is None,
    }.get(type(op), lambda: True)
    return "" if known() else f"no kernel for {op.describe()}"
