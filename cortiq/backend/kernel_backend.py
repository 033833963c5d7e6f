"""`KernelBackend`, the base of backends in an array library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cortiq.backend.arrays import ArrayLibrary
from cortiq.backend.fallback_kernels import FallbackKernels, Prepare
from cortiq.backend.kernel import TakesKernels
from cortiq.backend.kernel_executable import KernelExecutable, claimed_graphs, placement_of
from cortiq.backend.plan import Bound, KernelPlan, Kernels, Prepared
from cortiq.backend.protocol import (
    CompileOptions,
    Declined,
    Device,
    Support,
    Supported,
    Versions,
)
from cortiq.backend.support import device_named, no_kernel
from cortiq.ir import Graph, KVRows, Node, Op, Program, Recurrent, Ring
from cortiq.numerics.layouts import Weight

NOTHING: Kernels = {}


@dataclass(frozen=True)
class KernelTable:
    """The kernels of a backend: functions (call, *inputs) → output, or a tuple of outputs.

    Attributes
    ----------
    kernels : by primitive, and by operators that `KernelBackend.rewrite` puts in.
    options : options of operators that they know, as `Op.options` names them; None for all.
    layers : by layer, where a layer is computed as a whole.
    """

    kernels: Kernels
    options: frozenset[str] | None = None
    layers: Kernels = field(default_factory=dict)

    def known(self, op: Op) -> frozenset[str]:
        """Return the options that kernels know: those named, or all that an operator has."""
        return op.options() if self.options is None else self.options

    def computes(self, op: Op) -> bool:
        """Return whether there is a kernel that knows an operator with all its options."""
        return not no_kernel(op, self.kernels, self.known(op))


class KernelBackend(TakesKernels, ABC):
    """A backend that is a table of kernels over an array library.

    An author says what devices there are, how arrays are made on them (`library`), the kernels
    (`table`) and what kernels take as weights (`prepare`). Batches, sequences, state, faults,
    answers and placement are done here.

    Kernels of others (`cortiq.backend.Kernel`) are called as its own are: `KernelCall`, then the
    inputs.

    Attributes
    ----------
    name, priority, versions : of `cortiq.backend.Backend`.
    """

    name: str
    priority: int = -1
    versions: Versions = Versions()

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """Return the devices there are; raise BackendError that says why where there are none."""

    @abstractmethod
    def library(self, device: str, options: CompileOptions) -> ArrayLibrary:
        """Return the array library on a device; raise BackendError where it cannot be used."""

    @abstractmethod
    def table(self) -> KernelTable:
        """Return the kernels; it is called when they are needed first."""

    @abstractmethod
    def prepare(self, library: ArrayLibrary, op: Op, role: str, weight: Weight, name: str) -> Any:
        """Return a weight as the kernel of `op` takes it.

        Parameters
        ----------
        role : what the weight is to the operator. name : its name, for errors.
        """

    def executable(self) -> type[KernelExecutable]:
        """Return what a program becomes: `KernelExecutable`, or a subclass of it."""
        return KernelExecutable

    def form(self, op: Op, role: str) -> Hashable:
        """Return what `prepare` depends on besides the weight; weights of one form are shared."""
        return op, role

    def declines(self, node: Node, program: Program) -> str | None:
        """Return why a primitive that has a kernel is not computed all the same; None if it is."""
        return None

    def rewrite(self, nodes: list[Bound], graph: Graph) -> list[Bound]:
        """Return the nodes that state depends on, some of them fused; see `cortiq.backend.plan`."""
        return nodes

    def others(self) -> FallbackKernels | None:
        """Return what computes primitives that have no kernel; None declines them."""
        return None

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Accept primitives that have a kernel, and layers that have one of their own."""
        table, kind = self.table(), type(node.op)
        if not node.op.primitive:
            whole = kind in table.layers and not self.given
            known = node.op.options() <= table.known(node.op)
            return Supported() if whole and known else Declined("computed as its primitives")
        if kind in self.given or self.others() is not None:
            return Supported()
        missing = no_kernel(node.op, table.kernels, table.known(node.op))
        if missing:
            return Declined(missing)
        slots = [program.slots[name] for name in node.slots.values()]
        unknown = [s for s in slots if not isinstance(s, KVRows | Ring | Recurrent)]
        if unknown:
            return Declined(f"keeps no {type(unknown[0]).__name__} slots")
        reason = self.declines(node, program)
        return Supported() if reason is None else Declined(reason)

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> KernelExecutable:
        """Bind a program to its weights on a device.

        Raises
        ------
        BackendError : there is no such device, or it cannot be used.
        """
        device = device_named(self.name, options, self.devices())
        library = self.library(device, options)
        with library.running(options):
            plans = self.plans(program, weights, library)
        made = self.executable()(program, options, library, plans, self.placement(program))
        made.planner = partial(self.plans, library=library)
        return made

    def plans(
        self,
        program: Program,
        weights: Mapping[str, Weight],
        library: ArrayLibrary,
        made: dict[tuple[str, Hashable], Any] | None = None,
    ) -> dict[str, KernelPlan]:
        """Return a plan of each entry graph, with its weights prepared.

        Parameters
        ----------
        made : weights that are prepared, by name and form; those that are not are added.
        """
        table, others = self.table(), self.others()
        plan = self.executable().plan_type
        layers = NOTHING if self.given else table.layers  # kernels of others reach inside, too
        theirs = {op: kernel.function for op, kernel in self.given.items()}
        kernels: Kernels = {**table.kernels, **layers, **theirs}
        prepare: Prepare = self.prepare
        if others is not None:
            kernels, prepare = others.completed(kernels, self._computes, self.prepare)
        prepared = Prepared(
            weights,
            lambda op, role, weight, name: prepare(library, op, role, weight, name),
            self.form,
            {} if made is None else made,
        )
        graphs = claimed_graphs(program, layers)

        def rewritten(graph: Graph) -> Any:
            return lambda nodes: self.rewrite(list(nodes), graph)

        return {
            name: plan(graph, prepared.bound(graph), kernels, rewritten(graph))
            for name, graph in graphs.items()
        }

    def _computes(self, op: Op) -> bool:
        return type(op) in self.given or self.table().computes(op)

    def placement(self, program: Program) -> dict[str, str]:
        """Return by node name who computes it."""
        others = self.others()
        if others is None:
            return placement_of(program, None, self.name, self.name, self.given)
        return placement_of(program, self.table().computes, self.name, others.name, self.given)
