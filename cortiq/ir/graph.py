"""Graphs and programs: typed values, nodes in execution order, weights and state slots by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cortiq.errors import GraphError
from cortiq.ir.op import Op, Type, TypeMismatchError, inferred, violations_of
from cortiq.ir.slots import Slot


@dataclass(frozen=True)
class Value:
    """A named row value: every row of a batch has one of these."""

    name: str
    type: Type


@dataclass(frozen=True)
class Node:
    """One operator applied to values; `weights` and `slots` map roles to the program's names."""

    name: str
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WeightSpec:
    """A weight the program needs: shape (matrices [out, in], stacks [n, out, in]) and layout.

    `layout` is known once the program is bound to a checkpoint: a name of
    `cortiq.numerics.layouts`, or `f32`.
    """

    shape: tuple[int, ...]
    layout: str | None = None


@dataclass(frozen=True)
class Graph:
    """One entry of a program: inputs, nodes in execution order, and the type of every value.

    Attributes
    ----------
    inputs : names of the values a batch supplies per row (`token`, `position`, others by name).
    outputs : names of the values a caller may rely on (`hidden`, `logits`); any other named value
        can be asked for too.
    """

    name: str
    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Type]
    outputs: tuple[str, ...]

    def slots(self) -> list[str]:
        """Return the names of the slots this graph touches, in order of first use."""
        names = dict.fromkeys(name for node in self.nodes for name in node.slots.values())
        return list(names)

    def written_slots(self) -> list[str]:
        """Return the names of the slots this graph writes."""
        writers = (n for n in self.nodes if n.op.writes_slots)
        return list(dict.fromkeys(name for node in writers for name in node.slots.values()))


@dataclass(frozen=True)
class Program:
    """Entry graphs over the same weights and slots.

    Attributes
    ----------
    graphs : the trunk is named `trunk`; draft heads and others have names of their own.
    context : the declared context, in tokens: the longest sequence, and what length-dependent
        RoPE rules were fixed with.
    facts : family, vocabulary size and other facts for people and the runtime.
    """

    graphs: Mapping[str, Graph]
    weights: Mapping[str, WeightSpec]
    slots: Mapping[str, Slot]
    context: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trunk(self) -> Graph:
        """The graph that turns tokens into logits."""
        return self.graphs["trunk"]

    def with_layouts(self, layouts: Mapping[str, str]) -> Program:
        """Return a copy of the program with the layout of every weight filled in."""
        weights = {n: replace(w, layout=layouts[n]) for n, w in self.weights.items()}
        return replace(self, weights=weights)


class Builder:
    """Writes a program node by node; types are inferred and checked as it goes.

    Examples
    --------
    >>> b = Builder(context=2048)
    >>> token = b.input("token", (), "i32")
    >>> x = b.add(Embedding(vocab=100, width=16), token, name="embed", weights={"table": "embed"})
    >>> program = b.program(outputs=("embed",))
    """

    def __init__(self, *, context: int, facts: Mapping[str, Any] | None = None) -> None:
        self.context, self.facts = context, dict(facts or {})
        self.weights: dict[str, WeightSpec] = {}
        self.slots: dict[str, Slot] = {}
        self.graphs: dict[str, Graph] = {}
        self._start()

    def _start(self) -> None:
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self.values: dict[str, Type] = {}

    def input(self, name: str, shape: tuple[int, ...] = (), dtype: str = "i32") -> Value:
        """Declare a value every row of a batch supplies."""
        self.inputs.append(name)
        return self._value(name, Type(shape, dtype))

    def _value(self, name: str, type_: Type) -> Value:
        if name in self.values:
            raise GraphError(f"two values are named {name!r}", where=name)
        self.values[name] = type_
        return Value(name, type_)

    def weight(self, name: str, shape: tuple[int, ...]) -> None:
        """Declare a weight; declaring it again (a tie) must give the same shape."""
        known = self.weights.setdefault(name, WeightSpec(shape))
        if known.shape != shape:
            raise GraphError(f"used with shapes {known.shape} and {shape}", where=name)

    def slot(self, name: str, slot: Slot) -> None:
        """Declare a state slot; declaring it again (shared) must give the same geometry."""
        known = self.slots.setdefault(name, slot)
        if known != slot:
            raise GraphError(f"used as {known} and as {slot}", where=name)

    def add_node(
        self,
        op: Op,
        *inputs: Value,
        name: str,
        weights: Mapping[str, str] | None = None,
        slots: Mapping[str, str] | None = None,
    ) -> tuple[Value, ...]:
        """Append a node and return its outputs, named `name` (or `name.0`, `name.1`, …)."""
        weights, slots = dict(weights or {}), dict(slots or {})
        if outside := violations_of(op):
            raise GraphError("; ".join(map(str, outside)), where=name)
        try:
            types = inferred(op, tuple(v.type for v in inputs))
        except TypeMismatchError as error:
            raise GraphError(str(error), where=name) from None
        _check_roles(name, "weight", op.weight_shapes(), weights)
        _check_roles(name, "slot", op.slot_kinds(), slots)
        for role, shape in op.weight_shapes().items():
            self.weight(weights[role], shape)
        for role, kind in op.slot_kinds().items():
            self.slot(slots[role], kind)
        names = [name] if len(types) == 1 else [f"{name}.{i}" for i in range(len(types))]
        outputs = tuple(self._value(n, t) for n, t in zip(names, types, strict=True))
        sources = tuple(v.name for v in inputs)
        self.nodes.append(Node(name, op, sources, tuple(names), weights, slots))
        return outputs

    def add(
        self,
        op: Op,
        *inputs: Value,
        name: str,
        weights: Mapping[str, str] | None = None,
        slots: Mapping[str, str] | None = None,
    ) -> Value:
        """Append an operator with one output, as `add_node`."""
        (output,) = self.add_node(op, *inputs, name=name, weights=weights, slots=slots)
        return output

    def graph(self, name: str, outputs: tuple[str, ...]) -> Graph:
        """Finish the entry graph under construction and start the next."""
        for output in outputs:
            if output not in self.values:
                raise GraphError(f"output {output!r} is not a value of the graph", where=name)
        inputs, nodes = tuple(self.inputs), tuple(self.nodes)
        self.graphs[name] = Graph(name, inputs, nodes, dict(self.values), outputs)
        self._start()
        return self.graphs[name]

    def program(self, outputs: tuple[str, ...] = ()) -> Program:
        """Return the program; finish the graph under construction as the trunk."""
        if self.nodes:
            self.graph("trunk", outputs)
        return Program(self.graphs, self.weights, self.slots, self.context, self.facts)


def _check_roles(name: str, what: str, wanted: Mapping[str, Any], given: Mapping[str, str]) -> None:
    if set(wanted) != set(given):
        message = f"takes the {what}s {sorted(wanted)}, got {sorted(given)}"
        raise GraphError(message, where=name)


class Scope:
    """The writer of a layer's `decompose`: names below the node's, its weights and slots."""

    def __init__(self, builder: Builder, node: Node, layouts: Mapping[str, str | None]) -> None:
        self.builder, self.node, self.layouts = builder, node, layouts

    def layout(self, role: str) -> str | None:
        """Return the layout of the weight in this role."""
        return self.layouts.get(self.node.weights[role])

    def position(self) -> Value:
        """Return the graph's `position` value."""
        return Value("position", Type((), "i32"))

    def add(
        self,
        op: Op,
        *inputs: Value,
        name: str,
        weights: Mapping[str, str] | None = None,
        slots: Mapping[str, str] | None = None,
    ) -> Value:
        """Append an operator with one output; `weights` and `slots` name roles of the layer."""
        (output,) = self.add_node(op, *inputs, name=name, weights=weights, slots=slots)
        return output

    def add_node(
        self,
        op: Op,
        *inputs: Value,
        name: str,
        weights: Mapping[str, str] | None = None,
        slots: Mapping[str, str] | None = None,
    ) -> tuple[Value, ...]:
        """Append an operator; `weights` and `slots` map its roles to roles of the layer."""
        named = {r: self.node.weights[mine] for r, mine in (weights or {}).items()}
        kept = {r: self.node.slots[mine] for r, mine in (slots or {}).items()}
        full = f"{self.node.name}.{name}"
        return self.builder.add_node(op, *inputs, name=full, weights=named, slots=kept)
