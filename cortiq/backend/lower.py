"""Lowering of an entry graph of primitives to steps, for compiled backends.

Steps that state depends on run on all rows of a chunk (the *trunk*); the others only on rows that
want one of their values (the *tail*). Reshapes are no steps: a value and its reshaped form share
memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cortiq.backend.admission import BY_ROW
from cortiq.backend.kernel import NO_KERNELS, GivenKernels, Kernel
from cortiq.backend.plan import always_known, needed
from cortiq.ir import Graph, Node, Op, Type, ops

TAIL = "@tail"
"""Suffix of the copy of a trunk value that holds the tail's rows only."""


@dataclass(frozen=True)
class Gather:
    """Copies the tail's rows of a trunk value."""


@dataclass(frozen=True)
class Admit:
    """Passes a value that rows supply through `snap`."""


@dataclass(frozen=True)
class PackageOp:
    """A primitive that the kernel of another package computes: no pattern joins it with others."""

    op: Op
    kernel: Kernel


@dataclass(frozen=True)
class LoweredStep:
    """Nodes that one kernel computes.

    Attributes
    ----------
    op : a primitive, `Gather`, `Admit`, `PackageOp`, or what a backend makes of several primitives.
    nodes : empty for `Gather` and `Admit`.
    tail : whether it runs on the tail's rows.
    after : names of what must be done before, though the step reads no value of it.
    """

    op: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...] = ()
    tail: bool = False
    after: tuple[str, ...] = ()

    @property
    def node(self) -> Node | None:
        """Return the node, where there is one."""
        return self.nodes[0] if self.nodes else None

    @property
    def kind(self) -> str:
        """Name of the operator, for profiles."""
        op = self.op.op if isinstance(self.op, PackageOp) else self.op
        return type(op).__name__.removeprefix("Fused")

    @property
    def label(self) -> str:
        """Name of the operator, and the roles of what it computes, for profiles."""
        return " ".join([self.kind, *dict.fromkeys(map(_role, self.nodes))])


def _role(node: Node) -> str:
    """Return the last part of a node's name that is not its operator's."""
    *_, before, last = ["", *node.name.split(".")]
    return before if before and last.lower() == node.op.kind.lower() else last


@dataclass(frozen=True)
class Lowered:
    """Steps of one request, trunk before tail, and what its values are.

    Attributes
    ----------
    types : type of every value, gathered ones included.
    aliases : for each reshaped value the value whose memory it shares.
    """

    trunk: tuple[LoweredStep, ...]
    tail: tuple[LoweredStep, ...]
    types: dict[str, Type]
    aliases: dict[str, str]

    def root(self, name: str) -> str:
        """Return the value whose memory holds this one."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def gathered(self) -> set[str]:
        """Return the values of the trunk that the tail reads."""
        return {name for s in self.tail if isinstance(s.op, Gather) for name in s.inputs}


def lower(graph: Graph, wanted: frozenset[str], given: GivenKernels = NO_KERNELS) -> Lowered:
    """Lower a graph for rows that want these values, in its order.

    Parameters
    ----------
    given : kernels of other packages, by primitive.
    """
    always, chosen = always_known(graph), needed(graph.nodes, wanted)
    nodes = [node for node in graph.nodes if node.name in chosen]
    aliases = {n.outputs[0]: n.inputs[0] for n in nodes if isinstance(n.op, ops.Reshape)}
    lowered = Lowered((), (), dict(graph.values), aliases)
    steps = [
        LoweredStep(
            kernel_op(node, given), node.inputs, node.outputs, (node,), _is_late(node, always)
        )
        for node in nodes
        if not isinstance(node.op, ops.Reshape)
    ]
    supplied = [name for name in graph.inputs if lowered.types[name].dtype == "f32"]
    admitted = [LoweredStep(Admit(), (name,), (name,)) for name in supplied]
    trunk = [*admitted, *(step for step in steps if not step.tail)]
    tail = _gathered([step for step in steps if step.tail], always, lowered)
    return replace(lowered, trunk=tuple(trunk), tail=tuple(tail))


def kernel_op(node: Node, given: GivenKernels) -> Op | PackageOp:
    """Return what a node's step computes: its operator, or a package's kernel for it."""
    kernel = given.get(type(node.op))
    return node.op if kernel is None else PackageOp(node.op, kernel)


def _is_late(node: Node, always: frozenset[str]) -> bool:
    return bool(node.outputs) and node.outputs[0] not in always


def _gathered(
    steps: list[LoweredStep], always: frozenset[str], lowered: Lowered
) -> list[LoweredStep]:
    """Insert copies of trunk values for the tail's steps."""
    done: list[LoweredStep] = []
    known: set[str] = set()
    for step in steps:
        inputs = []
        for name in step.inputs:
            copy = _copy_of(name, always, lowered)
            whole = lowered.root(copy)
            if copy != name and whole not in known:
                known.add(whole)
                done.append(LoweredStep(Gather(), (whole.removesuffix(TAIL),), (whole,), tail=True))
            inputs.append(copy)
        done.append(replace(step, inputs=tuple(inputs)))
    return done


def _copy_of(name: str, always: frozenset[str], lowered: Lowered) -> str:
    """Name the value that a step of the tail reads instead; by-row inputs are known everywhere."""
    root = lowered.root(name)
    if name in BY_ROW or root not in always:
        return name
    lowered.types[name + TAIL] = lowered.types[name]
    if root != name:
        lowered.types[root + TAIL] = lowered.types[root]
        lowered.aliases[name + TAIL] = root + TAIL
    return name + TAIL


def joined_products(lowered: Lowered) -> Lowered:
    """Make matrix products over the same row one step, where the first stood."""
    return replace(lowered, trunk=_joined(lowered.trunk), tail=_joined(lowered.tail))


def _joined(steps: tuple[LoweredStep, ...]) -> tuple[LoweredStep, ...]:
    first: dict[str, int] = {}
    joined: list[LoweredStep] = []
    for step in steps:
        (source, *_) = step.inputs or ("",)
        if isinstance(step.op, ops.MatMul) and source in first:
            before = joined[first[source]]
            outputs, nodes = before.outputs + step.outputs, before.nodes + step.nodes
            joined[first[source]] = replace(before, outputs=outputs, nodes=nodes)
            continue
        if isinstance(step.op, ops.MatMul):
            first[source] = len(joined)
        joined.append(step)
    return tuple(joined)
