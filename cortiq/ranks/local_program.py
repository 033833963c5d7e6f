"""The program that one rank runs: its part of each value that is cut, and exchanges between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cortiq.ir import (
    Graph,
    KVRows,
    Node,
    Op,
    Program,
    Recurrent,
    Ring,
    Slot,
    Type,
    ops,
    primitives_of,
)
from cortiq.ranks.cuts import splits_of
from cortiq.ranks.exchange import GatherParts, JoinExperts, OwnExperts, TableRows
from cortiq.ranks.families import Key
from cortiq.ranks.local_ops import BY_EXPERT, LOCAL, NEED_WHOLE, Part
from cortiq.ranks.local_weights import WeightCut
from cortiq.ranks.shares import EXPERTS, Split, divided

PART = "@part"
"""Suffix of a value's part, and of the node that computes it."""


@dataclass(frozen=True)
class LocalProgram:
    """The program that one rank runs.

    Attributes
    ----------
    program : of primitives. Whatever the whole program's values are named, rows can ask for them:
        a value that is cut is put together for whoever wants it.
    cuts : parts of weights, by their names in `program`.
    splits : how values and slots are cut. tables : parts of tables of tokens, by these names, which
        `TableRows` reads.
    """

    program: Program
    cuts: Mapping[str, WeightCut]
    splits: Mapping[Key, Split]
    tables: tuple[str, ...] = ()

    def whole_name(self, name: str) -> str:
        """Return the name of the weight that a weight here is, or is a part of."""
        return self.cuts[name].name if name in self.cuts else name


def local_program(program: Program, rank: int, ranks: int, by_expert: bool = False) -> LocalProgram:
    """Return the program of one rank."""
    whole = primitives_of(program)
    splits = splits_of(whole, ranks, by_expert)
    writer = _Writer(whole, splits, rank, ranks)
    graphs = {name: writer.graph(graph) for name, graph in whole.graphs.items()}
    specs = {
        **{name: whole.weights[name] for name in writer.weights - writer.cuts.keys()},
        **{
            name: cut.spec(whole.weights[cut.name])
            for name, cut in writer.cuts.items()
            if name in writer.weights
        },
    }
    slots = {name: writer.slot(name, slot) for name, slot in whole.slots.items()}
    made = replace(whole, graphs=graphs, weights=specs, slots=slots)
    return LocalProgram(made, writer.cuts, splits, tuple(sorted(writer.tables)))


@dataclass
class _Writer:
    """Writes the graphs of a rank."""

    program: Program
    splits: Mapping[Key, Split]
    rank: int
    ranks: int
    weights: set[str] = field(default_factory=set)
    cuts: dict[str, WeightCut] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)

    def slot(self, name: str, slot: Slot) -> Slot:
        """Return a slot as this rank has it."""
        split = self.splits.get(("", name))
        if split is None:
            return slot
        size = split.size(self.rank)
        if isinstance(slot, Ring):
            return replace(slot, width=size)
        if isinstance(slot, Recurrent):
            return replace(slot, shape=(size, *slot.shape[1:]))
        assert isinstance(slot, KVRows)
        return replace(slot, heads=size)

    def graph(self, graph: Graph) -> Graph:
        """Return an entry graph as this rank has it."""
        return _GraphWriter(self, graph).written()

    def part_of_weight(self, name: str, axis: int, split: Split) -> str:
        """Return the name of this rank's part of a weight."""
        shape = self.program.weights[name].shape
        cut = WeightCut(name, shape, axis, split.pieces(self.rank), split.axis == EXPERTS)
        self.cuts[cut.local_name] = cut
        return cut.local_name


class _GraphWriter:
    """Writes one entry graph of a rank, node by node."""

    def __init__(self, writer: _Writer, graph: Graph) -> None:
        self.writer, self.given = writer, graph
        self.nodes: list[Node] = []
        self.values: dict[str, Type] = {name: graph.values[name] for name in graph.inputs}
        self.makers = {name: node for node in graph.nodes for name in node.outputs}

    def split(self, name: str) -> Split | None:
        """Return how a value is cut."""
        return self.writer.splits.get((self.given.name, name))

    def written(self) -> Graph:
        """Return the graph; the last nodes are exchanges that only some rows ask for."""
        for node in self.given.nodes:
            self._node(node)
        for node in self.given.nodes:
            for name in node.outputs:
                self.whole(name)
        return replace(self.given, nodes=tuple(self.nodes), values=self.values)

    def whole(self, name: str) -> str:
        """Return a value that is whole here, put together from parts if it is cut."""
        split = self.split(name)
        if split is None or name in self.values:
            return name
        type_, maker = self.given.values[name], self.makers[name]
        if type_.dtype == "q16" or self._is_section(maker):
            node = replace(maker, inputs=tuple(map(self.whole, maker.inputs)))
        else:
            node = self._exchange(name, split)
        self._add(node, [type_])
        return name

    def _exchange(self, name: str, split: Split) -> Node:
        """Return the node that puts a value together."""
        if split.axis == EXPERTS:
            inputs = (name + PART, self.whole(self._experts_of(name)))
            ((_, owned),) = split.owned(self.writer.rank)
            return Node(f"{name}.join", JoinExperts(owned), inputs, (name,))
        op = GatherParts(self.given.values[name].shape, split, self.writer.rank)
        return Node(f"{name}.gather", op, (name + PART,), (name,))

    def _experts_of(self, name: str) -> str:
        """Return the value that says which experts the rows of a value are of."""
        maker = self.makers[name]
        return (
            maker.inputs[1]
            if isinstance(maker.op, BY_EXPERT)
            else self._experts_of(maker.inputs[0])
        )

    def _own_experts(self, name: str, split: Split) -> str:
        """Return chosen experts by their numbers on this rank."""
        own = f"{self.whole(name)}@own"
        if own not in self.values:
            op = OwnExperts(split.only(self.writer.rank))
            self._add(Node(own, op, (name,), (own,)), [self.given.values[name]])
        return own

    def _add(self, node: Node, types: list[Type]) -> None:
        self.nodes.append(node)
        self.writer.weights.update(node.weights.values())
        self.values.update(zip(node.outputs, types, strict=True))

    def _node(self, node: Node) -> None:
        if self._is_table(node):
            self._add(self._table_rows(node), [self.given.values[node.outputs[0]]])
            return
        cut = [self.split(name) for name in node.outputs]
        slots = {role: self.writer.splits.get(("", name)) for role, name in node.slots.items()}
        if not any(cut) and not any(slots.values()):
            self._add(self._uncut(node), [self.given.values[name] for name in node.outputs])
            return
        op, weights = self._local(node, cut[0] if cut else None, next(iter(slots.values()), None))
        inputs = tuple(self._input(node, name) for name in node.inputs)
        if cut and cut[0] is not None and cut[0].axis == EXPERTS and isinstance(node.op, BY_EXPERT):
            inputs = (inputs[0], self._own_experts(node.inputs[1], cut[0]))
        types = [
            self.given.values[name]._replace(
                shape=split.local(self.given.values[name].shape, self.writer.rank)
            )
            for name, split in zip(node.outputs, cut, strict=True)
            if split is not None
        ]
        outputs = tuple(name + PART for name in node.outputs)
        name = node.name + PART if outputs else node.name
        self._add(Node(name, op, inputs, outputs, weights, node.slots), types)

    def _uncut(self, node: Node) -> Node:
        """Return a node whose outputs are whole here: of whole inputs, or of a part that has all
        of a section, since every rank computes it.
        """
        if self._is_section(node):
            (name,), op = node.inputs, node.op
            assert isinstance(op, ops.Slice)
            given, ranks = self.split(name), range(self.writer.ranks)
            places = [given and given.places(op.start, op.stop, rank) for rank in ranks]
            if all(place and place[1] - place[0] == op.stop - op.start for place in places):
                local, _ = self._local(node, None, None)
                return replace(node, op=local, inputs=(name + PART,))
        return replace(node, inputs=tuple(map(self.whole, node.inputs)))

    def _is_section(self, node: Node) -> bool:
        """Check whether a node takes neighbours of a value's last axis, along which that is cut."""
        if not isinstance(node.op, ops.Slice) or node.op.step > 1:
            return False
        split = self.split(node.inputs[0])
        return split is not None and split.axis == len(self.given.values[node.inputs[0]].shape) - 1

    def _is_table(self, node: Node) -> bool:
        """Check whether a node looks up rows of tokens in a table that ranks can divide."""
        writer = self.writer
        tokens = isinstance(node.op, ops.EmbedRows) and node.inputs == ("token",)
        return tokens and writer.ranks > 1 and node.op.vocab >= writer.ranks  # type: ignore[attr-defined]

    def _table_rows(self, node: Node) -> Node:
        """Return the node that looks up rows of which every rank has some."""
        op, writer = node.op, self.writer
        assert isinstance(op, ops.EmbedRows)
        split = Split(0, op.vocab, (divided(op.vocab, writer.ranks),))
        name = writer.part_of_weight(node.weights["table"], 0, split)
        writer.tables.add(name)
        rows = TableRows(op.vocab, op.width, op.missing, split.only(writer.rank), name)
        return Node(node.name, rows, node.inputs, node.outputs)

    def _input(self, node: Node, name: str) -> str:
        """Return an input as a node that computes a part takes it."""
        split = self.split(name)
        if split is not None and split.axis == EXPERTS:
            return name + PART
        if split is None and isinstance(node.op, ops.Add):
            return self._own_columns(name, self.split(node.outputs[0]))
        if split is None or (isinstance(node.op, NEED_WHOLE) and not self._by_head(node)):
            return self.whole(name)
        return name + PART

    def _own_columns(self, name: str, split: Split | None) -> str:
        """Return this rank's part of a row that is whole, cut as a sum with it is."""
        assert split is not None
        parts = [
            self._added(f"{name}@{start}:{stop}", ops.Slice(start, stop), name)
            for start, stop in split.pieces(self.writer.rank)
        ]
        return parts[0] if len(parts) == 1 else self._added("+".join(parts), ops.Concat(), *parts)

    def _added(self, name: str, op: Op, *inputs: str) -> str:
        """Return a value of a node that is added where it is not there yet."""
        if name not in self.values:
            types = op.infer(*(self.values[given] for given in inputs))
            self._add(Node(name, op, inputs, (name,)), list(types))
        return name

    def _by_head(self, node: Node) -> bool:
        """Check whether a product is made head by head, all with one matrix."""
        return isinstance(node.op, ops.MatMul) and len(self.given.values[node.inputs[0]].shape) > 1

    def _local(
        self, node: Node, split: Split | None, slot: Split | None
    ) -> tuple[Op, dict[str, str]]:
        """Return a node's operator and weights for this rank's part."""
        local = LOCAL.get(type(node.op))
        if local is None:
            return node.op, dict(node.weights)
        shape = self.given.values[node.outputs[0]].shape if node.outputs else ()
        writer = self.writer
        inputs = tuple(map(self.split, node.inputs))
        given = Part(node, writer.rank, shape, split, slot, inputs, writer.part_of_weight)
        changes = local(given)
        weights = {role: given.weights.get(role, name) for role, name in node.weights.items()}
        op: Any = node.op
        return replace(op, **changes), weights
