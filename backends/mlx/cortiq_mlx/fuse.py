"""A fused pattern: matrices that meet the same rows become one.

A pattern is a rewriting of nodes when a program is compiled. Every value keeps its name and its
bits: an output of a product depends on that row of the weight only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from cortiq.ir import Node, Op, ops
from cortiq_mlx.arithmetic import Rows
from cortiq_mlx.call import Call
from cortiq_mlx.kernels import product
from cortiq_mlx.library import mx
from cortiq_mlx.matrices import Matrix


@dataclass(frozen=True)
class SharedMatMul(Op):
    """Products of one value with several matrices, in one."""

    widths: tuple[int, ...]


def shared_matmul(call: Call, x: Rows | mx.array) -> tuple[mx.array, ...]:
    """A value for each of the matrices."""
    whole = product(call.weights["weight"], x, call.faults)
    return tuple(mx.split(whole, list(accumulate(call.op.widths))[:-1], axis=-1))


Bound = tuple[Node, Mapping[str, Any]]
"""A node and its prepared weights."""


def fused(nodes: Sequence[Bound]) -> Iterator[Bound]:
    """The nodes, with neighbouring products of one value joined where their weights can be."""
    for _, group in groupby(_sorted(nodes), key=_key):
        found = list(group)
        matrices = [weights["weight"] for _, weights in found if len(found) > 1]
        if matrices and all(matrices[0].joins(matrix) for matrix in matrices[1:]):
            yield _joined([node for node, _ in found], matrices)
        else:
            yield from found


def _key(bound: Bound) -> object:
    node, _ = bound
    return node.inputs if isinstance(node.op, ops.MatMul) else node.name


def _sorted(nodes: Sequence[Bound]) -> list[Bound]:
    """Every product moved up to the first one of the same value, whose inputs are there."""
    first: dict[object, int] = {}
    for place, bound in enumerate(nodes):
        first.setdefault(_key(bound), place)
    return sorted(nodes, key=lambda bound: first[_key(bound)])


def _joined(nodes: Sequence[Node], matrices: Sequence[Matrix]) -> Bound:
    outputs = tuple(output for node in nodes for output in node.outputs)
    op = SharedMatMul(tuple(matrix.height for matrix in matrices))
    node = Node(nodes[0].name, op, nodes[0].inputs, outputs)
    return node, {"weight": Matrix.joined(matrices)}
