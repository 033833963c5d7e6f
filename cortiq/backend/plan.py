"""A graph made ready to be walked: each node with its kernel and what its kernel makes of weights.

Nothing here knows an array library: a kernel is a function (call, *inputs) → output, or a tuple of
outputs, and a weight is whatever its kernel takes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from cortiq.ir import Graph, Node, Op, ops
from cortiq.numerics.layouts import Weight

Kernels = Mapping[type[Op], Callable[..., Any]]
Bound = tuple[Node, Mapping[str, Any]]
"""A node and its prepared weights, by role."""


def needed(nodes: Iterable[Node], wanted: Iterable[str] = ()) -> set[str]:
    """Names of the nodes that the wanted values, or any write of state, depend on."""
    values, names = set(wanted), set()
    for node in reversed(list(nodes)):
        writes = getattr(node.op, "writes_slots", False)
        if writes or values.intersection(node.outputs):
            names.add(node.name)
            values.update(node.inputs)
    return names


class Prepared:
    """Weights as kernels take them.

    Parameters
    ----------
    prepare : makes of (op, role, weight, its name) what the kernel of `op` takes.
    form : of (op, role); nodes that name one weight and have the same form share what was made.
        So a table that is also the last matrix can be held once.
    """

    def __init__(
        self,
        weights: Mapping[str, Weight],
        prepare: Callable[[Op, str, Weight, str], Any],
        form: Callable[[Op, str], Hashable] = lambda op, role: (op, role),
    ) -> None:
        self._weights, self._prepare, self._form = weights, prepare, form
        self._made: dict[tuple[str, Hashable], Any] = {}

    def of(self, node: Node) -> dict[str, Any]:
        """A node's weights by role."""
        found = {}
        for role, name in node.weights.items():
            key = name, self._form(node.op, role)
            if key not in self._made:
                self._made[key] = self._prepare(node.op, role, self._weights[name], name)
            found[role] = self._made[key]
        return found

    def bound(self, graph: Graph) -> list[Bound]:
        """The nodes of a graph, each with its weights."""
        return [(node, self.of(node)) for node in graph.nodes]


@dataclass(frozen=True)
class Step:
    """A node with its kernel and prepared weights.

    `late`: no state depends on it, so that only rows that want a value of it are computed.
    """

    node: Node
    kernel: Callable[..., Any]
    weights: Mapping[str, Any]
    late: bool


class Plan:
    """One entry graph, ready to run: first the steps that state depends on, then the late ones.

    Parameters
    ----------
    rewrite : what becomes of the nodes that state depends on. Late nodes stay as they are: a value
        that a row did not want must not fail it.

    Attributes
    ----------
    known : values that every row has: the graph's inputs, and what state depends on.
    """

    def __init__(
        self,
        graph: Graph,
        bound: Sequence[Bound],
        kernels: Kernels,
        rewrite: Callable[[list[Bound]], list[Bound]] = list,
    ) -> None:
        self.graph = graph
        for_state = needed(graph.nodes)
        first = rewrite([pair for pair in bound if pair[0].name in for_state])
        late = [pair for pair in bound if pair[0].name not in for_state]
        self.steps = [Step(n, kernels[type(n.op)], w, False) for n, w in first]
        self.steps += [Step(n, kernels[type(n.op)], w, True) for n, w in late]
        self.known = {*graph.inputs, *(output for node, _ in first for output in node.outputs)}
        self.needs = lru_cache(maxsize=256)(self._needs)
        self.select = lru_cache(maxsize=256)(self._select)

    def _needs(self, wanted: frozenset[str]) -> frozenset[str]:
        """Names of the nodes that a row which wants these values depends on."""
        return frozenset(needed((step.node for step in self.steps), wanted))

    def _select(self, wanted: frozenset[str]) -> tuple[tuple[Step, tuple[str, ...]], ...]:
        """Steps that are needed, each with the values that nothing needs once it has run."""
        names, kept, chosen = self.needs(wanted), set(wanted), []
        for step in reversed(self.steps):
            if step.node.name in names:
                touched = {*step.node.inputs, *step.node.outputs}
                chosen.append((step, tuple(touched - kept)))
                kept |= touched
        return tuple(reversed(chosen))


@dataclass(frozen=True)
class SharedMatMul(Op):
    """Products of one value with several matrices, in one; an output for each of the widths."""

    widths: tuple[int, ...]


def joined(nodes: Sequence[Bound]) -> list[Bound]:
    """The nodes, with the products of one value as one where their matrices can be.

    Every value keeps its name and its bits: an output of a product depends on that row of the
    weight only. A prepared matrix has a `height`, `joins(other)` says whether both can be rows of
    one, and `joined(matrices)` is the one with all their rows.
    """
    first: dict[object, int] = {}
    for place, bound in enumerate(nodes):
        first.setdefault(_key(bound), place)
    # Every product moves up to the first one of the same value, whose inputs are there.
    moved, found = sorted(nodes, key=lambda bound: first[_key(bound)]), []
    for _, group in groupby(moved, key=_key):
        found += _as_one(list(group))
    return found


def _key(bound: Bound) -> object:
    node, _ = bound
    return node.inputs if isinstance(node.op, ops.MatMul) else node.name


def _as_one(group: list[Bound]) -> list[Bound]:
    nodes = [node for node, _ in group]
    matrices = [weights["weight"] for _, weights in group if len(group) > 1]
    if not matrices or not all(matrices[0].joins(matrix) for matrix in matrices[1:]):
        return group
    op = SharedMatMul(tuple(matrix.height for matrix in matrices))
    outputs = tuple(output for node in nodes for output in node.outputs)
    node = Node(nodes[0].name, op, nodes[0].inputs, outputs)
    return [(node, {"weight": matrices[0].joined(matrices)})]
