"""A program bound to the kernels of a `KernelBackend`; see `cortiq.backend.Executable`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from cortiq.backend.answers import ON_HOST, Answers
from cortiq.backend.arrays import ArrayLibrary
from cortiq.backend.batch import Batch
from cortiq.backend.columns import Brought
from cortiq.backend.executable import Accepted
from cortiq.backend.kernel import GivenKernels
from cortiq.backend.kernel_walk import KernelWalk
from cortiq.backend.plan import KernelPlan, Kernels
from cortiq.backend.protocol import CompileOptions
from cortiq.backend.stored import SlotStore, StoredExecutable, StoredState
from cortiq.backend.stores import open_store
from cortiq.ir import Graph, Node, Op, Program, Slot, expand, primitives_of
from cortiq.numerics.layouts import Weight

Planner = Callable[..., Mapping[str, KernelPlan]]
"""Plans of a program and its weights; `made` are weights that are prepared already."""


class KernelExecutable(StoredExecutable[StoredState, KernelPlan]):
    """A program on one device of an array library.

    Attributes
    ----------
    library : the array library.
    walk_type, state_type, plan_type : how batches are walked, sequences kept, and graphs planned.
    answers : to what rows want.
    """

    trims: ClassVar[bool] = True
    walk_type: ClassVar[type[KernelWalk[Any]]] = KernelWalk
    state_type: ClassVar[type[StoredState]] = StoredState
    plan_type: ClassVar[type[KernelPlan]] = KernelPlan
    answers: ClassVar[Answers] = ON_HOST

    def __init__(
        self,
        program: Program,
        options: CompileOptions,
        library: ArrayLibrary,
        plans: Mapping[str, KernelPlan],
        placement: Mapping[str, str],
    ) -> None:
        self.library, self.placement = library, placement
        self.planner: Planner | None = None
        self._made: dict[tuple[str, Hashable], Any] = {}
        super().__init__(program, options, plans)

    @property
    def provenance(self) -> Mapping[str, str]:
        """The libraries and the device that compute, for receipts."""
        return self.library.provenance()

    def varied_plans(
        self, program: Program, weights: Mapping[str, Weight]
    ) -> Mapping[str, KernelPlan]:
        """Compile the trunk of a program with overlays.

        The program's own weights are prepared anew for the first one, since they may have been
        joined, and kept for the next.
        """
        if self.planner is None:
            return super().varied_plans(program, weights)
        trunk = replace(program, graphs={"trunk": program.trunk})
        known = self.program.weights
        self._made = {key: made for key, made in self._made.items() if key[0] in known}
        with self.library.running(self.options):
            return self.planner(trunk, weights, made=self._made)

    def new_state(self, limit: int) -> StoredState:
        """Return an empty sequence of at most `limit` positions."""
        return self.state_type(self, limit)

    def new_store(self, name: str, slot: Slot) -> SlotStore:
        """Return an empty store for the slot of this name."""
        page, poison = self.options.page_rows, bool(self.options.extra.get("poison"))
        return open_store(self.library, slot, page, poison, self.extent(name))

    def device_bytes(self) -> int:
        """Return the memory that the device has free."""
        free = self.library.free_bytes()
        return super().device_bytes() if free is None else free

    def compute(
        self, plan: KernelPlan, batch: Batch, accepted: Sequence[Accepted[StoredState]]
    ) -> Sequence[Sequence[Brought] | None]:
        """Return what the rows of each sequence bring, None for one with a fault."""
        with self.library.running(self.options):
            walk = self.walk_type(plan, batch, accepted, self.library)
            walk.answers = self.answers
            return walk.compute()


def claimed_graphs(program: Program, layers: Kernels) -> dict[str, Graph]:
    """Return the entry graphs, decomposed down to primitives and to these layers."""
    layouts = {weight: spec.layout for weight, spec in program.weights.items()}

    def is_claimed(node: Node) -> bool:
        return type(node.op) in layers

    return {name: expand(g, layouts, is_claimed) for name, g in program.graphs.items()}


def placement_of(
    program: Program,
    own: Callable[[Op], bool] | None,
    name: str,
    other: str,
    given: GivenKernels,
) -> dict[str, str]:
    """Return by node name who computes it.

    A layer is of one owner only if all its primitives are. Where kernels of others compute some of
    them, the layer is theirs and its backend's together.

    Parameters
    ----------
    own : whether `name` computes a primitive; None for all. other : who computes the rest.
    """
    layouts = {weight: spec.layout for weight, spec in program.weights.items()}
    graphs = primitives_of(program).graphs.values() if given else ()
    there = {type(node.op) for graph in graphs for node in graph.nodes}
    given = {op: kernel for op, kernel in given.items() if op in there}

    def owner(op: Op) -> str:
        if type(op) in given:
            return given[type(op)].owner
        return name if own is None or own(op) else other

    def owners(node: Node, graph: Graph) -> str:
        if node.op.primitive or (own is None and not given):
            return owner(node.op)
        parts = expand(replace(graph, nodes=(node,)), layouts, lambda _: False).nodes
        found = {owner(part.op) for part in parts}
        if len(found) == 1:
            return next(iter(found))
        return "+".join(sorted(found)) if any("/" in part for part in found) else other

    return {
        node.name: owners(node, graph) for graph in program.graphs.values() for node in graph.nodes
    }
