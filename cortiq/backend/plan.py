"""Plans of entry graphs: each node with its kernel and the weights that its kernel takes.

Nothing here knows an array library: a kernel is a function (call, *inputs) → output, or a tuple of
outputs, and a weight is whatever its kernel takes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cortiq.ir import Graph, Node, Op, ops
from cortiq.numerics.layouts import Weight

Kernels = Mapping[type[Op], Callable[..., Any]]
Bound = tuple[Node, Mapping[str, Any]]
"""A node and its prepared weights, by role."""


def needed(nodes: Iterable[Node], wanted: Iterable[str] = ()) -> set[str]:
    """Name the nodes that the wanted values, or any write of state, depend on."""
    values, names = set(wanted), set()
    for node in reversed(list(nodes)):
        if node.op.writes_slots or values.intersection(node.outputs):
            names.add(node.name)
            values.update(node.inputs)
    return names


def always_known(graph: Graph) -> frozenset[str]:
    """Name the values that every row has, whatever it wants: inputs, and what state depends on."""
    names = needed(graph.nodes)
    values = {output for node in graph.nodes if node.name in names for output in node.outputs}
    return frozenset(values | set(graph.inputs))


@dataclass
class Prepared:
    """Weights as kernels take them.

    Attributes
    ----------
    prepare : makes of (op, role, weight, its name) what the kernel of `op` takes.
    form : of (op, role); nodes that name one weight and have the same form share what was made.
        So a table that is also the last matrix can be held once.
    """

    weights: Mapping[str, Weight]
    prepare: Callable[[Op, str, Weight, str], Any]
    form: Callable[[Op, str], Hashable] = lambda op, role: (op, role)
    made: dict[tuple[str, Hashable], Any] = field(default_factory=dict)

    def make_ahead(self, nodes: Iterable[Node], workers: int) -> None:
        """Make what nodes take, several weights at once; a part of another weight is not made.

        Most of the time goes into reading, converting and copying arrays, beside which threads run.
        The first error ends it: what had not begun is not made.
        """
        todo: dict[tuple[str, Hashable], tuple[Op, str]] = {}
        for node in nodes:
            for role, name in node.weights.items():
                key = name, self.form(node.op, role)
                if key not in self.made and self.weights[name].whole is None:
                    todo.setdefault(key, (node.op, role))
        pool = ThreadPoolExecutor(workers)
        try:
            tasks = {
                key: pool.submit(self.prepare, op, role, self.weights[key[0]], key[0])
                for key, (op, role) in todo.items()
            }
            for key, task in tasks.items():
                self.made[key] = task.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def of(self, node: Node) -> dict[str, Any]:
        """Return a node's weights by role."""
        found = {}
        for role, name in node.weights.items():
            key = name, self.form(node.op, role)
            if key not in self.made:
                self.made[key] = self.prepare(node.op, role, self.weights[name], name)
            found[role] = self.made[key]
        return found

    def bound(self, graph: Graph) -> list[Bound]:
        """Return the nodes of a graph, each with its weights."""
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


class KernelPlan:
    """One entry graph, ready to run: first the steps that state depends on, then the late ones.

    Parameters
    ----------
    rewrite : what becomes of the nodes that state depends on. Late nodes stay as they are: a value
        that a row did not want must not fail it.

    Attributes
    ----------
    known : values that every row has: the graph's inputs, and what state depends on.
    needs : of wanted values, the names of the nodes that they, or any write of state, depend on.
    select : of wanted values, the steps in order, each with the values that nothing needs after it.
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
        nodes = [step.node for step in self.steps]
        self.needs = lru_cache(maxsize=256)(lambda wanted: frozenset(needed(nodes, wanted)))
        self.select = lru_cache(maxsize=256)(self._select)

    def _select(self, wanted: frozenset[str]) -> tuple[tuple[Step, tuple[str, ...]], ...]:
        names = self.needs(wanted)
        return used_up([step for step in self.steps if step.node.name in names], wanted)


def used_up(
    steps: Sequence[Step], wanted: Iterable[str]
) -> tuple[tuple[Step, tuple[str, ...]], ...]:
    """Return steps in order, each with the values that nothing needs after it."""
    kept, found = set(wanted), []
    for step in reversed(steps):
        touched = {*step.node.inputs, *step.node.outputs}
        found.append((step, tuple(touched - kept)))
        kept |= touched
    return tuple(reversed(found))


@dataclass(frozen=True)
class SharedMatMul(Op):
    """Products of one value with several matrices, in one; an output for each of the widths."""

    widths: tuple[int, ...]


def joined(nodes: Sequence[Bound]) -> list[Bound]:
    """Join the products of one value where their matrices can be one.

    Every value keeps its name and its bits: an output of a product depends on that row of the
    weight only. A prepared matrix has a `height`, `joins(other)` says whether both can be rows of
    one, and `joined(matrices)` is the one with all their rows.
    """
    groups: dict[object, list[Bound]] = {}
    for node, weights in nodes:
        key = node.inputs if isinstance(node.op, ops.MatMul) else node.name
        groups.setdefault(key, []).append((node, weights))
    # Every product moves up to the first one of the same value, whose inputs are there.
    return [bound for group in groups.values() for bound in _as_one(group)]


def _as_one(group: list[Bound]) -> list[Bound]:
    nodes = [node for node, _ in group]
    matrices = [weights["weight"] for _, weights in group if len(group) > 1]
    if not matrices or not all(matrices[0].joins(matrix) for matrix in matrices[1:]):
        return group
    op = SharedMatMul(tuple(matrix.height for matrix in matrices))
    outputs = tuple(output for node in nodes for output in node.outputs)
    node = Node(nodes[0].name, op, nodes[0].inputs, outputs)
    return [(node, {"weight": matrices[0].joined(matrices)})]
