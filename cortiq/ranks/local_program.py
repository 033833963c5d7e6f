"""The program that one rank runs: its part of each value that is cut, and exchanges between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cortiq.errors import GraphError
from cortiq.ir import Graph, KVRows, Node, Op, Program, Slot, Type, ops, primitives_of
from cortiq.ranks.exchange import GatherParts
from cortiq.ranks.families import Key, splits_of
from cortiq.ranks.local_weights import WeightCut
from cortiq.ranks.shares import Split

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
    splits : how values and slots are cut.
    """

    program: Program
    cuts: Mapping[str, WeightCut]
    splits: Mapping[Key, Split]

    def parts(self, entry: str) -> dict[str, Split]:
        """Return how the values of an entry graph are cut."""
        return {name: split for (graph, name), split in self.splits.items() if graph == entry}


def local_program(program: Program, rank: int, ranks: int) -> LocalProgram:
    """Return the program of one rank."""
    whole = primitives_of(program)
    splits = splits_of(whole, ranks)
    writer = _Writer(whole, splits, rank)
    graphs = {name: writer.graph(graph) for name, graph in whole.graphs.items()}
    specs = {
        **{name: whole.weights[name] for name in writer.weights - writer.cuts.keys()},
        **{name: cut.spec(whole.weights[cut.name]) for name, cut in writer.cuts.items()},
    }
    slots = {name: writer.slot(name, slot) for name, slot in whole.slots.items()}
    made = replace(whole, graphs=graphs, weights=specs, slots=slots)
    return LocalProgram(made, writer.cuts, splits)


@dataclass
class _Writer:
    """Writes the graphs of a rank."""

    program: Program
    splits: Mapping[Key, Split]
    rank: int
    weights: set[str] = field(default_factory=set)
    cuts: dict[str, WeightCut] = field(default_factory=dict)

    def slot(self, name: str, slot: Slot) -> Slot:
        """Return a slot as this rank has it."""
        split = self.splits.get(("", name))
        if split is None:
            return slot
        assert isinstance(slot, KVRows)
        start, stop = split.ranges[self.rank]
        return replace(slot, heads=stop - start)

    def graph(self, graph: Graph) -> Graph:
        """Return an entry graph as this rank has it."""
        return _GraphWriter(self, graph).written()

    def part_of_weight(self, name: str, axis: int, split: Split) -> str:
        """Return the name of this rank's part of a weight."""
        shape = self.program.weights[name].shape
        cut = WeightCut(name, shape, axis, split.ranges[self.rank])
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
        if type_.dtype == "q16":
            node = replace(maker, inputs=tuple(map(self.whole, maker.inputs)))
        else:
            op = GatherParts(type_.shape, split, self.writer.rank)
            node = Node(f"{name}.gather", op, (name + PART,), (name,))
        self._add(node, [type_])
        return name

    def _add(self, node: Node, types: list[Type]) -> None:
        self.nodes.append(node)
        self.writer.weights.update(node.weights.values())
        self.values.update(zip(node.outputs, types, strict=True))

    def _node(self, node: Node) -> None:
        cut = [self.split(name) for name in node.outputs]
        slots = {role: self.writer.splits.get(("", name)) for role, name in node.slots.items()}
        if not any(cut) and not any(slots.values()):
            inputs = tuple(map(self.whole, node.inputs))
            self._add(
                replace(node, inputs=inputs), [self.given.values[name] for name in node.outputs]
            )
            return
        op, weights = self._local(node, cut[0] if cut else None, slots.get("kv"))
        inputs = tuple(self._input(node, name) for name in node.inputs)
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

    def _input(self, node: Node, name: str) -> str:
        """Return an input as a node that computes a part takes it."""
        if self.split(name) is None or (
            isinstance(node.op, NEED_WHOLE) and not self._by_head(node)
        ):
            return self.whole(name)
        return name + PART

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
        given = Part(self, node, split, slot)
        changes = local(given)
        weights = {role: given.weights.get(role, name) for role, name in node.weights.items()}
        op: Any = node.op
        return replace(op, **changes), weights


NEED_WHOLE = (ops.MatMul, ops.ExpertMatMul)
"""Operators whose outputs are cut while they take rows that are whole."""


@dataclass
class Part:
    """A node of which a rank computes a part.

    Attributes
    ----------
    split, slot : of its output, and of its slot. weights : names of parts of weights, by role.
    """

    writer: _GraphWriter
    node: Node
    split: Split | None
    slot: Split | None
    weights: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Indices that this rank has."""
        return self._size(self.split)

    @property
    def slot_size(self) -> int:
        """Heads that this rank has of the slot."""
        return self._size(self.slot)

    def _size(self, split: Split | None) -> int:
        if split is None:
            raise GraphError("a node is cut that has no cut value", where=self.node.name)
        start, stop = split.ranges[self.writer.writer.rank]
        return stop - start

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole output."""
        return self.writer.given.values[self.node.outputs[0]].shape

    @property
    def last(self) -> bool:
        """Whether the last axis is cut."""
        assert self.split is not None
        return self.split.axis == len(self.shape) - 1

    def cut(self, role: str, axis: int) -> None:
        """Take the part of a weight along an axis of it."""
        assert self.split is not None
        writer = self.writer.writer
        self.weights[role] = writer.part_of_weight(self.node.weights[role], axis, self.split)


def _matmul(part: Part) -> dict[str, Any]:
    if not part.last:
        return {}
    part.cut("weight", 0)
    return {"out_width": part.size}


def _heads(part: Part) -> dict[str, Any]:
    part.cut("weight", 0)
    return {"heads": part.size}


def _experts(part: Part) -> dict[str, Any]:
    part.cut("weight", 1)
    return {"out_width": part.size}


def _bias(part: Part) -> dict[str, Any]:
    if not part.last:
        return {}
    part.cut("bias", 0)
    return {"width": part.size}


def _expert_bias(part: Part) -> dict[str, Any]:
    part.cut("bias", 1)
    return {"width": part.size}


def _gain(part: Part) -> dict[str, Any]:
    op: Any = part.node.op
    if op.per == "all" or part.last != (op.per == "value"):
        return {}
    part.cut("weight", 0)
    return {"width": part.size}


def _reshape(part: Part) -> dict[str, Any]:
    return {"shape": (part.size, *part.shape[1:])}


def _slice(part: Part) -> dict[str, Any]:
    op: Any = part.node.op
    return {"stop": part.size * op.step} if part.last else {}


def _store(part: Part) -> dict[str, Any]:
    return {"heads": part.slot_size}


def _attend(part: Part) -> dict[str, Any]:
    op: Any = part.node.op
    if op.sinks:
        part.cut("sinks", 0)
    kv_heads = op.kv_heads if part.slot is None else part.slot_size
    return {"heads": part.size, "kv_heads": kv_heads}


LOCAL: Mapping[type[Op], Callable[[Part], dict[str, Any]]] = {
    ops.MatMul: _matmul, ops.HeadMatMul: _heads, ops.ExpertMatMul: _experts, ops.Bias: _bias,
    ops.ExpertBias: _expert_bias, ops.Gain: _gain, ops.Reshape: _reshape, ops.Slice: _slice,
    ops.StoreKV: _store, ops.Attend: _attend,
}  # fmt: skip
"""What changes about an operator's options where a part of its output is computed."""
