"""Weights that are vectors or small tables of floats, as kernels take them."""

from __future__ import annotations

from cortiq.ir import Op, ops
from cortiq.numerics.contract import Floats
from cortiq.numerics.layouts import Weight, floats
from cortiq.numerics.norms import offset_weight
from cortiq.numerics.scaling import gain

MATRICES = (ops.EmbedRows, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul)
"""Operators whose weight is a matrix, a table, or a stack of matrices."""


def stack_of(op: Op) -> int:
    """Return how many matrices the weight of an operator holds."""
    if isinstance(op, ops.HeadMatMul):
        return op.heads
    return op.experts if isinstance(op, ops.ExpertMatMul) else 1


def is_table(op: Op, role: str) -> bool:
    """Return whether a weight of floats has several rows: biases of experts or of places in a
    window, lists of experts, the taps of a convolution.
    """
    if isinstance(op, ops.CausalConv):
        return role == "weight"
    return isinstance(op, ops.ExpertBias | ops.Compress | ops.KeepListed)


def float_weight(op: Op, role: str, weight: Weight, name: str) -> Floats:
    """Return a weight of floats as the kernel of `op` takes it, on the host.

    That is one row, or a table of several (`is_table`). Offsets of norms and forms of gains are
    worked in.

    Parameters
    ----------
    role : what the weight is to the operator. name : its name, for errors.
    """
    values = floats(weight, name)
    if isinstance(op, ops.RMSNorm | ops.LayerNorm) and role == "weight":
        return offset_weight(values[0], op.offset)
    if isinstance(op, ops.Gain):
        return gain(values[0], op.form, name)
    return values if is_table(op, role) else values[0]
