"""Graphs whose rows choose an overlay: nodes that overlays add (docs/NUMERICS.md, section 16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from cortiq.errors import GraphError
from cortiq.ir import ops
from cortiq.ir.decompose import primitives_of
from cortiq.ir.graph import Graph, Node, Program, WeightSpec
from cortiq.ir.op import Op, Type, inferred
from cortiq.ir.overlays import (
    BANK_LAYOUT,
    FACTORS,
    OVERLAY,
    OVERLAY_INDEX,
    OVERLAY_ROW,
    STACKS,
    OverlayChange,
    bank_name,
    changeable,
    matrices,
)


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
        if not isinstance(node.op, (ops.MatMul, ops.EmbedRows, *STACKS)):
            return "", OverlayChange()
        (name,) = node.weights.values()
        return name, self.changes.get((name, table), OverlayChange())

    def _ends(self) -> Iterator[tuple[str, Node]]:
        """Yield outputs that vectors multiply, with the product: those of a bias, where one is."""
        kinds = ops.Bias, ops.ExpertBias
        biases = {n.inputs[0]: n for n in self.graph.nodes if isinstance(n.op, kinds)}
        for node in self.graph.nodes:
            if self._change(node)[1].after:
                end = biases.get(node.outputs[0], node)
                yield end.outputs[0], node

    def _write(self, node: Node) -> None:
        """Append a node and what overlays do to it; the last value has the node's output's name."""
        name, change = self._change(node)
        out = node.outputs[0] if node.outputs else ""
        steps = [step for step, there in (("delta", change.rank), ("gain", change.gain)) if there]
        steps += ["after"] if out in self.ends else []
        if change.before or change.shift:
            changed = self._changed_input(node, name, change)
            node = replace(node, inputs=(changed, *node.inputs[1:]))
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
                product = self.ends[out] if step == "after" else node
                vector = self._vector(f"{node.name}.overlay.{step}", product, step, before)
                self._add(f"{node.name}.overlay.{step}ed", ops.Multiply(), (before, vector), value)

    def _own(self, node: Node, weight: str, out: str) -> None:
        """Append the product with a row's own matrix in place of the weight's, or the token's row
        of an own table.
        """
        op, layout = node.op, self.layouts[weight]
        if isinstance(op, ops.EmbedRows):
            rows = self.members * op.vocab
            bank = self._bank(weight, "whole", (rows, op.width), True, layout)
            looked_up = ops.EmbedRows(rows, op.width)
            self._add(node.name, looked_up, (OVERLAY_ROW,), out, {"table": bank})
            return
        own: Any = op
        size = self.members * matrices(op)
        bank = self._bank(weight, "whole", (size, own.out_width, own.in_width), layout=layout)
        product = ops.ExpertMatMul(size, own.in_width, own.out_width)
        index, weights = self._index(node), {"weight": bank}
        inputs = (node.inputs[0], index)
        if index != OVERLAY_INDEX:
            self._add(node.name, product, inputs, out, weights)
            return
        one = self._add(f"{node.name}.overlay.own", product, inputs, weights=weights)
        self._add(node.name, ops.Reshape((own.out_width,)), (one,), out)

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

    def _bank(
        self,
        weight: str,
        part: str,
        shape: tuple[int, ...],
        table: bool = False,
        layout: str | None = "f32",
    ) -> str:
        name = bank_name(weight, part, table)
        layout = BANK_LAYOUT if part in FACTORS else layout
        self.banks[name] = WeightSpec(shape, layout)
        return name

    def _vector(self, name: str, node: Node, part: str, like: str) -> str:
        """Append the look-up of what a value of a product is multiplied with: a row's own vector,
        of which heads have a part each, or those of the chosen experts.
        """
        weight, shape = self._change(node)[0], self.values[like].shape
        if isinstance(node.op, ops.ExpertMatMul):
            return self._of_experts(name, node, self._bank(
                weight, part, (self.members * node.op.experts, shape[-1])), like)  # fmt: skip
        width = prod(shape)
        bank = self._bank(weight, part, (self.members, width))
        op, flat = ops.EmbedRows(self.members, width), name if len(shape) == 1 else f"{name}.flat"
        self._add(flat, op, (OVERLAY,), weights={"table": bank})
        return flat if len(shape) == 1 else self._add(name, ops.Reshape(shape), (flat,))

    def _of_experts(self, name: str, node: Node, bank: str, like: str) -> str:
        """Append the look-up of the chosen experts' vectors: zeros with these as biases."""
        size, width = self.banks[bank].shape
        zeros = self._add(f"{name}.zeros", ops.Scale(0.0), (like,))
        index, weights = self._index(node), {"bias": bank}
        return self._add(name, ops.ExpertBias(size, width), (zeros, index), weights=weights)

    def _index(self, node: Node) -> str:
        """Append the places of a row's matrices in a bank, or return where they are."""
        if not isinstance(node.op, STACKS):
            return OVERLAY_INDEX
        name, every = f"{node.name}.overlay.index", isinstance(node.op, ops.HeadMatMul)
        if name in self.values:
            return name
        given = (OVERLAY,) if every else (OVERLAY, node.inputs[1])
        return self._add(name, ops.StackIndex(matrices(node.op), every), given)

    def _record(self, name: str, value: str) -> str:
        """Append the quantised row of a value, where it is floats."""
        if self.values[value].dtype == "q16":
            return value
        return self._add(name, ops.Quantise(), (value,))

    def _changed_input(self, node: Node, weight: str, change: OverlayChange) -> str:
        """Append an input's product with a vector, and the sum of that and another; return it as
        the matrix takes it.

        Raises
        ------
        GraphError : chosen experts multiply one row, which would be another for each.
        """
        value = node.inputs[0]
        quantised = self.values[value].dtype == "q16"
        floats = self.makers[value].inputs[0] if quantised else value
        called = f"{node.name}.overlay.input"
        if isinstance(node.op, ops.ExpertMatMul) and len(self.values[floats].shape) == 1:
            raise GraphError("no overlay can change the row that experts share", where=weight)
        if change.before:
            vector = self._vector(f"{called}.vector", node, "before", floats)
            floats = self._add(called, ops.Multiply(), (floats, vector))
        if change.shift:
            vector = self._vector(f"{called}.shift", node, "shift", floats)
            floats = self._add(f"{called}.shifted", ops.Add(), (floats, vector))
        return self._record(f"{called}.quantise", floats) if quantised else floats

    def _product(self, node: Node, weight: str, rank: int) -> str:
        """Append B·(A·x) of a row's overlay."""
        op: ops.MatMul = node.op  # type: ignore[assignment]
        size = self.members * matrices(op)
        a = self._bank(weight, "a", (size, rank, op.in_width))
        called, index = f"{node.name}.overlay", self._index(node)
        x = self._record(f"{called}.x", node.inputs[0])
        inner = ops.ExpertMatMul(size, op.in_width, rank)
        r = self._add(f"{called}.a", inner, (x, index), weights={"weight": a})
        b = self._bank(weight, "b", (size, op.out_width, rank))
        return self._outer(called, b, r, index)

    def _looked_up(self, node: Node, weight: str, rank: int) -> str:
        """Append B·a, where a is the token's row of the overlay's own table."""
        op: ops.EmbedRows = node.op  # type: ignore[assignment]
        a = self._bank(weight, "a", (self.members * op.vocab, rank), True)
        called = f"{node.name}.overlay"
        table = ops.EmbedRows(self.members * op.vocab, rank)
        r = self._add(f"{called}.a", table, (OVERLAY_ROW,), weights={"table": a})
        b = self._bank(weight, "b", (self.members, op.width, rank), True)
        return self._outer(called, b, r, OVERLAY_INDEX)

    def _outer(self, called: str, bank: str, r: str, index: str) -> str:
        """Append the second factor's product."""
        size, width, rank = self.banks[bank].shape
        record = self._record(f"{called}.r", r)
        outer, weights = ops.ExpertMatMul(size, rank, width), {"weight": bank}
        one = self._add(f"{called}.b", outer, (record, index), weights=weights)
        if index != OVERLAY_INDEX:
            return one
        return self._add(f"{called}.delta", ops.Reshape((width,)), (one,))
