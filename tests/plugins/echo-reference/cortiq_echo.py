"""A backend that an outsider could have written: the reference's kernels under another name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from cortiq.backend import CompileOptions, Device, Executable, Support
    from cortiq.ir import Graph, Node, Program
    from cortiq.numerics.layouts import Weight


class EchoExecutable:
    """An executable of the reference; what it computes, it says, is ours."""

    def __init__(self, executable: Executable, name: str) -> None:
        self._executable = executable
        self.placement = dict.fromkeys(executable.placement, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)


class EchoBackend:
    """Every node, computed as the reference does."""

    name = "echo"
    priority = -1

    def __init__(self) -> None:
        from cortiq.backend import Versions

        self.versions = Versions(hookspec=1, ir=1, contract=1)

    def devices(self) -> Sequence[Device]:
        """One device."""
        from cortiq.backend import Device

        return [Device("first", "the reference, from outside")]

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Whatever the reference does."""
        from cortiq_reference.backend import ReferenceBackend

        return ReferenceBackend().supports(node, graph, program)

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> EchoExecutable:
        """Compile on the reference."""
        from cortiq_reference.backend import ReferenceBackend

        executable = ReferenceBackend().compile(program, weights, options)
        return EchoExecutable(executable, self.name)


@hookimpl
def cortiq_backends() -> Sequence[EchoBackend]:
    """The backend of this package."""
    return [EchoBackend()]
