"""The backend object: what it supports, and how a program is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cortiq.backend import (
    CompileOptions,
    Declined,
    Device,
    Support,
    Supported,
    TakesKernels,
    Versions,
)
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight
from cortiq_reference.executable import ReferenceExecutable
from cortiq_reference.kernels import KERNELS


class ReferenceBackend(TakesKernels):
    """NumPy on the CPU: every primitive of the catalogue, no fused layer, no tuning but tiles.

    Kernels of others (`cortiq.backend.Kernel`) are called as its own are: `Call`, then the inputs.
    """

    name = "reference"
    priority = 0
    versions = Versions()

    def devices(self) -> Sequence[Device]:
        """Return the CPU."""
        return [Device("cpu", "NumPy")]

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Accept primitives and layers that decompose into them."""
        if not node.op.primitive or type(node.op) in {**KERNELS, **self.given}:
            return Supported()
        return Declined(f"no kernel for {node.op.kind}")

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> ReferenceExecutable:
        """Decompose to primitives and bind them to their weights."""
        return ReferenceExecutable(program, weights, options, self.given)
