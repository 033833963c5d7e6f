"""From an entry graph of primitives to the steps that a batch takes: which, on which rows, grouped.

Steps that state depends on run on all rows of a chunk (the *trunk*); the others only on rows that
want one of their values (the *tail*). A matrix product and its neighbours over the same row are one
step. Reshapes are no steps: a value and its reshaped form share a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cortiq.backend.plan import always_known, needed
from cortiq.ir import Graph, Node, Type, ops

TAIL = "@tail"
"""Suffix of the copy of a trunk value that holds the tail's rows only."""


@dataclass(frozen=True)
class Gather:
    """Copies the tail's rows of a trunk value."""

    kind = "Gather"


@dataclass(frozen=True)
class Admit:
    """Passes a value that rows supply through `snap`."""

    kind = "Admit"


@dataclass(frozen=True)
class Step:
    """Nodes that one op computes: several are matrix products over one row.

    Attributes
    ----------
    op : the primitive, `Gather` or `Admit`.
    nodes : empty for the latter two.
    tail : whether it runs on the tail's rows.
    """

    op: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...] = ()
    tail: bool = False

    @property
    def label(self) -> str:
        """What a profile calls it: the operator, and the role of what it computes."""
        return " ".join([type(self.op).__name__, *dict.fromkeys(map(_role, self.nodes))])


def _role(node: Node) -> str:
    """Last part of a node's name that is not its operator's."""
    *_, before, last = ["", *node.name.split(".")]
    return before if before and last.lower() == node.op.kind.lower() else last


@dataclass(frozen=True)
class Lowered:
    """Steps of one request, trunk before tail, and what its values are.

    Attributes
    ----------
    types : type of every value, gathered ones included.
    aliases : for each reshaped value the value whose buffer it shares.
    """

    trunk: tuple[Step, ...]
    tail: tuple[Step, ...]
    types: dict[str, Type]
    aliases: dict[str, str]

    def root(self, name: str) -> str:
        """The value whose buffer holds this one."""
        while name in self.aliases:
            name = self.aliases[name]
        return name


def lower(graph: Graph, wanted: frozenset[str]) -> Lowered:
    """Steps for rows that want these values."""
    always, chosen = always_known(graph), needed(graph.nodes, wanted)
    nodes = [node for node in graph.nodes if node.name in chosen]
    aliases = {n.outputs[0]: n.inputs[0] for n in nodes if isinstance(n.op, ops.Reshape)}
    types = dict(graph.values)
    steps = [
        Step(node.op, node.inputs, node.outputs, (node,), _late(node, always))
        for node in nodes
        if not isinstance(node.op, ops.Reshape)
    ]
    supplied = [name for name in graph.inputs if types[name].dtype == "f32"]
    trunk = [Step(Admit(), (name,), (name,)) for name in supplied]
    trunk += [step for step in steps if not step.tail]
    tail = _gathered([s for s in steps if s.tail], always, types, aliases)
    return Lowered(tuple(_grouped(trunk)), tuple(_grouped(tail)), types, aliases)


def _late(node: Node, always: frozenset[str]) -> bool:
    return bool(node.outputs) and node.outputs[0] not in always


def _gathered(
    steps: list[Step], always: frozenset[str], types: dict[str, Type], aliases: dict[str, str]
) -> list[Step]:
    """The tail's steps, reading copies of what the trunk computed."""
    done: list[Step] = []
    known: set[str] = set()
    for step in steps:
        inputs = []
        for name in step.inputs:
            name = _copy_of(name, always, types, aliases)
            if name.endswith(TAIL) and name not in known:
                known.add(name)
                done.append(Step(Gather(), (name.removesuffix(TAIL),), (name,), tail=True))
            inputs.append(name)
        done.append(replace(step, inputs=tuple(inputs)))
    return done


def _copy_of(
    name: str, always: frozenset[str], types: dict[str, Type], aliases: dict[str, str]
) -> str:
    """What a step of the tail reads instead; token and position are known for either set."""
    if name in ("token", "position") or name not in always:
        # A reshape made for the tail of a trunk value: its root is what has to be copied.
        source = aliases.get(name)
        if source is None or _copy_of(source, always, types, aliases) == source:
            return name
        name = source
    types[name + TAIL] = types[name]
    return name + TAIL


def _grouped(steps: list[Step]) -> list[Step]:
    """Matrix products over the same quantised row become one step, where the first stood."""
    first: dict[str, int] = {}
    grouped: list[Step] = []
    for step in steps:
        (source, *_) = step.inputs or ("",)
        if isinstance(step.op, ops.MatMul) and source in first:
            index = first[source]
            before = grouped[index]
            outputs, nodes = before.outputs + step.outputs, before.nodes + step.nodes
            grouped[index] = replace(before, outputs=outputs, nodes=nodes)
            continue
        if isinstance(step.op, ops.MatMul):
            first[source] = len(grouped)
        grouped.append(step)
    return grouped
