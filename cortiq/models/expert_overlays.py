"""Changes of stacked experts (`target_parameters`), as what they do to a program's weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.adapter import Adapter
from cortiq.formats.stacked_factors import StackedLowRank
from cortiq.ir import Node, Program, ops, primitives_of
from cortiq.ir.layers import MoE
from cortiq.models.adapters import doubles
from cortiq.models.overlay_pieces import MatrixChange

_LAYER = re.compile(r"\blayers\.(\d+)\.")
ROLES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "gate_up_proj": (("gate_up",), ("gate", "up")),
    "input_linear": (("gate_up",), ("gate", "up")),
    "gate_proj": (("gate",),),
    "up_proj": (("up",),),
    "down_proj": (("down",),),
    "output_linear": (("down",),),
}
"""Weights of `MoE` that a parameter is, one below the other."""


def experts_changes(
    adapter: Adapter, stacked: StackedLowRank, program: Program
) -> Iterator[tuple[str, MatrixChange]]:
    """Yield the weights that a change is of, with their part of it.

    Raises
    ------
    FormatError : there are no such experts, or it fits none of their parameters.
    UnsupportedError : it is of a parameter that is no expert's.
    """
    where = str(adapter.path)
    node = _experts(stacked.module, program)
    if node is None:
        what = f"changes a parameter of {stacked.module}, which are no experts of the model"
        raise UnsupportedError(what, where=where)
    assert isinstance(node.op, MoE)
    a, b, count = doubles(adapter, stacked.a), doubles(adapter, stacked.b), node.op.experts
    rank, rest = divmod(len(a), count)
    if rest or not rank or b.shape[1:] != a.shape[:1]:
        what = f"changes {count} experts of {stacked.module} by {list(a.shape)}, {list(b.shape)}"
        raise FormatError(what, where=where, hint="it was made for another model")
    right = a.reshape(count, rank, -1)
    left = b.reshape(len(b), rank, count).transpose(2, 0, 1)
    roles, turned = _roles(stacked, node, (len(b), a.shape[1]), where)
    if turned:
        left, right = right.swapaxes(1, 2), left.swapaxes(1, 2)
    left = left * (stacked.scale(rank) * adapter.scale)
    start, shapes = 0, node.op.weight_shapes()
    for role in roles:
        height = shapes[role][1]
        cut = np.ascontiguousarray(left[:, start : start + height])
        yield node.weights[role], MatrixChange(a=right, b=cut)
        start += height


def _experts(module: str, program: Program) -> Node | None:
    """Return the experts of the layer that a module is in."""
    layer = _LAYER.search(module)
    for node in program.trunk.nodes if layer is not None else ():
        if isinstance(node.op, MoE):
            own = _LAYER.search(next(iter(node.weights.values())))
            if own is not None and layer is not None and own[1] == layer[1]:
                return node
    return None


def _roles(
    stacked: StackedLowRank, node: Node, size: tuple[int, int], where: str
) -> tuple[tuple[str, ...], bool]:
    """Return the weights of the parameter whose matrices have this size, and whether they are the
    other way round.
    """
    assert isinstance(node.op, MoE)
    shapes = node.op.weight_shapes()
    last = stacked.module.rpartition(".")[2]
    names = [last if parameter == "weight" else parameter for parameter in stacked.parameters]
    every = [roles for name in names for roles in ROLES.get(name, ()) if roles[0] in shapes]
    for turned in (False, True):
        for roles in every:
            own = sum(shapes[role][1] for role in roles), shapes[roles[0]][2]
            if size == (own[::-1] if turned else own):
                return roles, turned
    what = f"changes {', '.join(names)} of {stacked.module} by matrices {list(size)}"
    raise FormatError(what, where=where, hint="it was made for another model")


def shares_its_row(node: Node, program: Program) -> bool:
    """Return whether the chosen experts of a product all multiply the same row."""
    values = primitives_of(program).trunk.values
    return isinstance(node.op, ops.ExpertMatMul) and len(values[node.inputs[0]].shape) == 1
