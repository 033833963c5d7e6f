"""The reference with one fault in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from cortiq.backend import CompileOptions, Declined, Support, Versions
from cortiq.backend.answers import ON_HOST, Answers
from cortiq.backend.plan import Kernels
from cortiq.backend.stored import StoredState
from cortiq.errors import RequestError
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight
from cortiq_conformance.faults.table import ANSWERS, DECLINES, DELEGATES, FAULTS, STATES, WRONG
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.executable import ReferenceExecutable
from cortiq_reference.kernels import KERNELS


class FaultyBackend(ReferenceBackend):
    """The reference with one fault."""

    priority = -1
    versions = Versions()

    def __init__(self, fault: str) -> None:
        if fault not in FAULTS:
            raise RequestError(f"there is no fault {fault!r}", hint=", ".join(FAULTS))
        self.fault = fault
        self.name = "faulty"

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Return the reference's decision, or decline."""
        if self.fault == DECLINES:
            return Declined(f"{node.op.kind} is not implemented")
        return super().supports(node, graph, program)

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> ReferenceExecutable:
        """Compile the reference's executable with wrong parts in it."""
        executable = _executable_type(self.fault)(program, weights, options)
        if self.fault == DELEGATES:
            executable.placement = dict.fromkeys(executable.placement, self.name)
        return executable


def _executable_type(fault: str) -> type[ReferenceExecutable]:
    class FaultyExecutable(ReferenceExecutable):
        """The reference's, with one part replaced."""

        kernels: ClassVar[Kernels] = {**KERNELS, **WRONG.get(fault, {})}
        answers: ClassVar[Answers] = {**ON_HOST, **ANSWERS.get(fault, {})}
        state_type: ClassVar[type[StoredState]] = STATES.get(fault, StoredState)

    return FaultyExecutable
