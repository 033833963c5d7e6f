"""Matrices whose columns a file keeps in no order of groups (GPTQ's act-order), as codes.

The codes lie in a layout once the columns are group by group, and the row that such a matrix
multiplies is permuted alike. That takes a `Linear` of its own: other users get floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cortiq.ir import Graph, Node, Program, expand, ops
from cortiq.ir.layers import Linear
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.tensor_pieces import TensorSlice
from cortiq.numerics.column_order import ColumnOrder

Pieces = Mapping[str, Sequence[TensorSlice]]


@dataclass(frozen=True)
class OrderedWeights:
    """The weights that are read in an order of columns, and those that could not be.

    Attributes
    ----------
    orders : by the weight's name. left : names of weights that become floats.
    """

    orders: Mapping[str, ColumnOrder]
    left: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return a line about the weights that become floats, if there are any."""
        if not self.left:
            return ()
        why = "whose order of columns (desc_act) no product of theirs follows"
        return (f"{len(self.left)} matrices have groups {why}: they are converted as floats are",)


def ordered_weights(
    program: Program, checkpoint: OpenCheckpoint, tensors: Pieces
) -> OrderedWeights:
    """Find the weights whose tensors have an order, the same in all of them, and whose users are
    all `Linear`.
    """
    found = {name: _order(checkpoint, pieces) for name, pieces in tensors.items()}
    found = {name: orders for name, orders in found.items() if any(orders)}
    others = _users_beside_linear(program) if found else set()
    kept = {
        name: orders[0]
        for name, orders in found.items()
        if len(set(orders)) == 1 and orders[0] is not None and name not in others
    }
    return OrderedWeights(kept, tuple(sorted(found.keys() - kept.keys())))


def _order(checkpoint: OpenCheckpoint, pieces: Sequence[TensorSlice]) -> list[ColumnOrder | None]:
    """Return the order of each tensor; None for one without, or whose columns are cut or turned."""
    orders = []
    for piece in pieces:
        ordered: Any = getattr(checkpoint.tensor(piece.tensor), "ordered", None)
        by_rows = not piece.swapped and (piece.is_whole or piece.axis < len(piece.shape) - 1)
        cut = ordered is None or not by_rows
        orders.append(None if cut else ColumnOrder.of(ordered.columns))
    return orders


def orders_of(program: Program) -> dict[str, ColumnOrder]:
    """Return the order of columns of each weight whose rows are permuted before its product."""
    found = dict[str, ColumnOrder]()
    for graph in program.graphs.values():
        made = {n.outputs[0]: n.op.order for n in graph.nodes if isinstance(n.op, ops.Permute)}
        for node in graph.nodes:
            if node.inputs and node.inputs[0] in made:
                found |= dict.fromkeys(node.weights.values(), made[node.inputs[0]])
    return found


def in_order(tensor: Any) -> Any:
    """Return a tensor with its columns in its order."""
    ordered = tensor.ordered
    return replace(tensor, type=ordered.type, make=ordered.make, ordered=None)


def _users_beside_linear(program: Program) -> set[str]:
    """Return the weights that anything but a `Linear` takes."""
    flat = (expand(g, {}, _is_linear) for g in program.graphs.values())
    nodes = (node for graph in flat for node in graph.nodes if not _is_linear(node))
    return {name for node in nodes for name in node.weights.values()}


def _is_linear(node: Node) -> bool:
    return isinstance(node.op, Linear)


def with_orders(program: Program, orders: Mapping[str, ColumnOrder]) -> Program:
    """Return the program with `Permute` before the products of ordered weights.

    Layers that hold such products are written out; all others stay. `program` has its layouts.
    """
    if not orders:
        return program
    layouts = {name: spec.layout for name, spec in program.weights.items()}
    graphs = {
        name: _with_orders(expand(graph, layouts, lambda n: _stays(n, orders)), orders)
        for name, graph in program.graphs.items()
    }
    return replace(program, graphs=graphs)


def _stays(node: Node, orders: Mapping[str, ColumnOrder]) -> bool:
    return _is_linear(node) or orders.keys().isdisjoint(node.weights.values())


def _with_orders(graph: Graph, orders: Mapping[str, ColumnOrder]) -> Graph:
    """Permute the rows of ordered products; products of one row in one order share it."""
    values, made = dict(graph.values), dict[tuple[str, ColumnOrder], str]()

    def written() -> Iterator[Node]:
        for node in graph.nodes:
            order = orders.get(node.weights["weight"]) if _is_linear(node) else None
            if order is None:
                yield node
                continue
            source = node.inputs[0]
            if (source, order) not in made:
                name = f"{node.name}.order"
                made[source, order], values[name] = name, values[source]
                yield Node(name, ops.Permute(order), (source,), (name,))
            yield replace(node, inputs=(made[source, order],))

    nodes = tuple(written())
    return replace(graph, nodes=nodes, values=values)
