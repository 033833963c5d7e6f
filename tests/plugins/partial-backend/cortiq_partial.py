"""A backend begun this afternoon: Linear and RMSNorm, nothing else yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cortiq.backend import (
    CompileOptions,
    Declined,
    Device,
    Executable,
    Support,
    Supported,
    Versions,
)
from cortiq.hookspecs import hookimpl
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight

WRITTEN = ("Linear", "RMSNorm")


class PartialExecutable:
    """Those two layers, with the reference's kernels until ours are written."""

    def __init__(self, executable: Executable, name: str) -> None:
        self._executable = executable
        self.placement = dict.fromkeys(executable.placement, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)


class PartialBackend:
    """Takes Linear and RMSNorm as layers and declines all primitives."""

    name = "partial"
    priority = -1
    versions = Versions(hookspec=1, ir=1, contract=1)

    def devices(self) -> Sequence[Device]:
        """One device."""
        return [Device("first", "a device with two kernels")]

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """The two layers that are written."""
        if node.op.kind in WRITTEN:
            return Supported()
        return Declined(f"{node.op.kind} is not written yet")

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> PartialExecutable:
        """Compile a program of those two layers; anything else in it is an error of cortiq's."""
        kinds = {node.op.kind for graph in program.graphs.values() for node in graph.nodes}
        if not kinds.issubset(WRITTEN):
            raise AssertionError(f"was given {sorted(kinds.difference(WRITTEN))} to compile")
        from cortiq_reference.backend import ReferenceBackend

        executable = ReferenceBackend().compile(program, weights, options)
        return PartialExecutable(executable, self.name)


@hookimpl
def cortiq_backends() -> Sequence[PartialBackend]:
    """The backend of this package."""
    return [PartialBackend()]
