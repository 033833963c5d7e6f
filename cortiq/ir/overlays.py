"""Programs whose rows choose an overlay: a change of some weights, one of several in a batch.

An overlay is a number that a row supplies, 0 for none. What overlays do to a matrix lies in
*banks*: stacks with a member for each number, so that a low-rank product is that of a chosen
expert, and rows of one overlay share it (docs/NUMERICS.md, section 16). Member 0 changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cortiq.errors import GraphError
from cortiq.ir import ops
from cortiq.ir.decompose import primitives_of
from cortiq.ir.graph import Graph, Node, Program, WeightSpec
from cortiq.ir.op import Op, Type, inferred

OVERLAY, OVERLAY_INDEX, OVERLAY_ROW = "overlay", "overlay.index", "overlay.row"
"""Inputs of a graph with overlays: the number, the same as the index of an expert, and the row of a
bank of tables, number·vocabulary + token, which the executable supplies."""
BANK_LAYOUT = "w16"
"""Layout of the matrices in banks; vectors are float32."""


@dataclass(frozen=True)
class OverlayChange:
    """A weight's nodes of overlays.

    Attributes
    ----------
    rank : of their low-rank products; 0 for none.
    before, gain, after : whether vectors multiply the input, the product, and the output with its
        bias.
    table : it is the change of rows looked up, not of a product.
    shift : whether a vector is added to the input, after `before`.
    whole : whether an overlay may have a matrix of its own in the weight's place.
    """

    rank: int = 0
    before: bool = False
    gain: bool = False
    after: bool = False
    table: bool = False
    shift: bool = False
    whole: bool = False


def bank_name(weight: str, part: str, table: bool = False) -> str:
    """Return the name of a bank of a weight: of a part of `OverlayPart`."""
    return f"{weight}@{'table.' if table else ''}{part}"


@lru_cache(maxsize=4096)
def overlay_inputs(number: int) -> Mapping[str, Any]:
    """Return what a row of an overlay supplies."""
    return {OVERLAY: np.int32(number), OVERLAY_INDEX: np.array([number], np.int32)}


def changeable(program: Program) -> dict[tuple[str, bool], Node]:
    """Return the nodes of the trunk whose weights overlays may change, by weight and `table`."""
    found = {}
    for node in primitives_of(program).trunk.nodes:
        table = isinstance(node.op, ops.EmbedRows) and node.inputs[0] == "token"
        if table or (isinstance(node.op, ops.MatMul) and _is_row(node, program)):
            (name,) = node.weights.values()
            found[name, table] = node
    return found


def _is_row(node: Node, program: Program) -> bool:
    return len(primitives_of(program).trunk.values[node.inputs[0]].shape) == 1


def makes_outputs(node: Node) -> bool:
    """Return whether a node is a product with matrices of overlays whose rows are the weight's: B
    of B·(A·x), or one in the weight's place.
    """
    stacked = node.inputs[1:] == (OVERLAY_INDEX,)
    return stacked and node.weights["weight"].endswith(("@b", "@table.b", "@whole"))


def with_overlays(
    program: Program, members: int, changes: Mapping[tuple[str, bool], OverlayChange]
) -> Program:
    """Return the program, of primitives, whose trunk's rows choose one of so many overlays.

    Parameters
    ----------
    members : overlays, number 0 among them.
    changes : by weight and whether it is the change of a table.

    Raises
    ------
    GraphError : a weight is not one of `changeable`.
    """
    known = changeable(program)
    strange = sorted(name for name, table in changes if (name, table) not in known)
    if strange:
        raise GraphError("no overlay can change this weight", where=strange[0])
    plain = primitives_of(program)
    wanted = {key: c for key, c in changes.items() if c != OverlayChange()}
    layouts = {name: spec.layout for name, spec in program.weights.items()}
    writer = _OverlayWriter(plain.trunk, members, wanted, layouts)
    trunk = writer.written()
    specs = {**program.weights, **writer.banks}
    return replace(plain, graphs={**plain.graphs, "trunk": trunk}, weights=specs)


@dataclass
class _OverlayWriter:
    """Writes a trunk with the overlays' nodes.

    Attributes
    ----------
    layouts : of the program's weights. banks : weights that were added.
    """

    graph: Graph
    members: int
    changes: Mapping[tuple[str, bool], OverlayChange]
    layouts: Mapping[str, str | None]
    banks: dict[str, WeightSpec] = field(default_factory=dict)

    def written(self) -> Graph:
        """Return the graph."""
        self.nodes: list[Node] = []
        rows = any(table for _, table in self.changes)
        added = {OVERLAY: Type((), "i32"), OVERLAY_INDEX: Type((1,), "i32")}
        added |= {OVERLAY_ROW: Type((), "i32")} if rows else {}
        self.values = {**self.graph.values, **added}
        self.makers = {out: node for node in self.graph.nodes for out in node.outputs}
        self.ends = dict(self._ends())
        for node in self.graph.nodes:
            self._write(node)
        return replace(
            self.graph,
            inputs=(*self.graph.inputs, *added),
            nodes=tuple(self.nodes),
            values=self.values,
        )

    def _change(self, node: Node) -> tuple[str, OverlayChange]:
        """Return a node's weight and its change."""
        table = isinstance(node.op, ops.EmbedRows)
        if not isinstance(node.op, ops.MatMul | ops.EmbedRows):
            return "", OverlayChange()
        (name,) = node.weights.values()
        return name, self.changes.get((name, table), OverlayChange())

    def _ends(self) -> Iterator[tuple[str, str]]:
        """Yield outputs that vectors multiply, with the weight: those of a bias, where one is."""
        biases = {n.inputs[0]: n for n in self.graph.nodes if isinstance(n.op, ops.Bias)}
        for node in self.graph.nodes:
            name, change = self._change(node)
            if change.after:
                end = biases.get(node.outputs[0], node)
                yield end.outputs[0], name

    def _write(self, node: Node) -> None:
        """Append a node and what overlays do to it; the last value has the node's output's name."""
        name, change = self._change(node)
        out = node.outputs[0] if node.outputs else ""
        steps = [step for step, there in (("delta", change.rank), ("gain", change.gain)) if there]
        steps += ["after"] if out in self.ends else []
        if change.before or change.shift:
            node = replace(node, inputs=(self._changed_input(node, name, change),))
        values = [f"{out}.base", *(f"{out}.{step}" for step in steps[:-1]), out] if steps else [out]
        if change.whole:
            self._own(node, name, values[0])
        else:
            self.nodes.append(replace(node, outputs=(values[0],)) if steps else node)
        if steps:
            self.values[values[0]] = self.graph.values[out]
        for step, before, value in zip(steps, values, values[1:], strict=False):
            if step == "delta":
                change_of = self._looked_up if change.table else self._product
                delta = change_of(node, name, change.rank)
                self._add(f"{node.name}.overlay.sum", ops.Add(), (before, delta), value)
            else:
                weight = self.ends[out] if step == "after" else name
                vector = self._vector(f"{node.name}.overlay.{step}", weight, step, before)
                self._add(f"{node.name}.overlay.{step}ed", ops.Multiply(), (before, vector), value)

    def _own(self, node: Node, weight: str, out: str) -> None:
        """Append the product with a row's own matrix in place of the weight's."""
        op: ops.MatMul = node.op  # type: ignore[assignment]
        bank = bank_name(weight, "whole")
        shape = (self.members, op.out_width, op.in_width)
        self.banks[bank] = WeightSpec(shape, self.layouts[weight])
        product = ops.ExpertMatMul(self.members, op.in_width, op.out_width)
        inputs = (node.inputs[0], OVERLAY_INDEX)
        one = self._add(f"{node.name}.overlay.own", product, inputs, weights={"weight": bank})
        self._add(node.name, ops.Reshape((op.out_width,)), (one,), out)

    def _add(
        self,
        name: str,
        op: Op,
        inputs: tuple[str, ...],
        out: str = "",
        weights: Mapping[str, str] | None = None,
    ) -> str:
        """Append a node; return its output's name."""
        (kind,) = inferred(op, tuple(self.values[n] for n in inputs))
        self.values[out or name] = kind
        self.nodes.append(Node(name, op, inputs, (out or name,), dict(weights or {})))
        return out or name

    def _bank(self, weight: str, part: str, shape: tuple[int, ...], table: bool = False) -> str:
        name = bank_name(weight, part, table)
        layout = BANK_LAYOUT if part in "ab" else "f32"
        self.banks[name] = WeightSpec(shape, layout)
        return name

    def _vector(self, name: str, weight: str, part: str, like: str) -> str:
        """Append the look-up of a row's own vector for a value."""
        (width,) = self.values[like].shape
        bank = self._bank(weight, part, (self.members, width))
        return self._add(
            name, ops.EmbedRows(self.members, width), (OVERLAY,), weights={"table": bank}
        )

    def _record(self, name: str, value: str) -> str:
        """Append the quantised row of a value, where it is floats."""
        if self.values[value].dtype == "q16":
            return value
        return self._add(name, ops.Quantise(), (value,))

    def _changed_input(self, node: Node, weight: str, change: OverlayChange) -> str:
        """Append an input's product with a vector, and the sum of that and another; return it as
        the matrix takes it.
        """
        value = node.inputs[0]
        quantised = self.values[value].dtype == "q16"
        floats = self.makers[value].inputs[0] if quantised else value
        called = f"{node.name}.overlay.input"
        if change.before:
            vector = self._vector(f"{called}.vector", weight, "before", floats)
            floats = self._add(called, ops.Multiply(), (floats, vector))
        if change.shift:
            vector = self._vector(f"{called}.shift", weight, "shift", floats)
            floats = self._add(f"{called}.shifted", ops.Add(), (floats, vector))
        return self._record(f"{called}.quantise", floats) if quantised else floats

    def _product(self, node: Node, weight: str, rank: int) -> str:
        """Append B·(A·x) of a row's overlay."""
        op: ops.MatMul = node.op  # type: ignore[assignment]
        shape = (self.members, rank, op.in_width)
        a = self._bank(weight, "a", shape)
        called = f"{node.name}.overlay"
        x = self._record(f"{called}.x", node.inputs[0])
        inner = ops.ExpertMatMul(*(self.members, op.in_width, rank))
        r = self._add(f"{called}.a", inner, (x, OVERLAY_INDEX), weights={"weight": a})
        return self._outer(called, weight, r, rank, op.out_width)

    def _looked_up(self, node: Node, weight: str, rank: int) -> str:
        """Append B·a, where a is the token's row of the overlay's own table."""
        op: ops.EmbedRows = node.op  # type: ignore[assignment]
        a = self._bank(weight, "a", (self.members * op.vocab, rank), True)
        called = f"{node.name}.overlay"
        table = ops.EmbedRows(self.members * op.vocab, rank)
        r = self._add(f"{called}.a", table, (OVERLAY_ROW,), weights={"table": a})
        return self._outer(called, weight, r, rank, op.width, True)

    def _outer(
        self, called: str, weight: str, r: str, rank: int, width: int, table: bool = False
    ) -> str:
        """Append the second factor's product."""
        b = self._bank(weight, "b", (self.members, width, rank), table)
        record = self._record(f"{called}.r", r)
        outer = ops.ExpertMatMul(self.members, rank, width)
        one = self._add(f"{called}.b", outer, (record, OVERLAY_INDEX), weights={"weight": b})
        return self._add(f"{called}.delta", ops.Reshape((width,)), (one,))
