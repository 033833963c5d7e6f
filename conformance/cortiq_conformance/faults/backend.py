"""The faulty backend, and for each fault the one family of cases that finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.backend import CompileOptions, Declined, Support, Versions
from cortiq.backend.answers import ON_HOST, Answers
from cortiq.backend.plan import Kernels
from cortiq.backend.stored import StoredState
from cortiq.errors import RequestError
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight
from cortiq_conformance.faults.kernels import WRONG_KERNELS
from cortiq_conformance.faults.recurrences import WRONG_RECURRENCES, WRONG_RECURRENT_STATES
from cortiq_conformance.faults.roundings import WRONG_ROUNDINGS
from cortiq_conformance.faults.tails import WRONG_ANSWERS, WRONG_STATES
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.executable import ReferenceExecutable
from cortiq_reference.kernels import KERNELS

WRONG = {**WRONG_KERNELS, **WRONG_ROUNDINGS, **WRONG_RECURRENCES}
STATES = {**WRONG_STATES, **WRONG_RECURRENT_STATES}
DECLINES = "declines everything"
DELEGATES = "delegates behind the back"


@dataclass(frozen=True)
class Fault:
    """What finds a fault: the family of its cases, and the operator the report names."""

    family: str
    op: str


FAULTS: Mapping[str, Fault] = {
    "fused multiply-add in RMSNorm": Fault("RMSNorm", "RMSNorm"),
    "reordered canonical_sum": Fault("canonical_sum", "RMSNorm"),
    "half-away rounding in the quantiser": Fault("Quantise", "Quantise"),
    "planes swapped": Fault("MatMul[w16]", "MatMul"),
    "float matmul in the f32 format": Fault("MatMul[f32]", "MatMul"),
    "tie to the highest index": Fault("Argmax", "Argmax"),
    "wrong tie-break in top-k": Fault("Top ties", "Top"),
    "wrong tie-break in routing": Fault("Route ties", "Route"),
    "window off by one": Fault("Attend window", "Attend"),
    "sink dropped": Fault("Attend sinks", "Attend"),
    "a stale row after rewind": Fault("rewind", "Attend"),
    "a fork that shares its parent's tail": Fault("fork", "Attend"),
    "a tile counted from the chunk's start": Fault("Attend block", "Attend"),
    "a row that sees its batch neighbour": Fault("batch", "Attend"),
    "a position-independent random key": Fault("Draw", "Draw"),
    "a mask that is a bias": Fault("Draw", "Draw"),
    "a draft drawn for the next position": Fault("Draw", "Draw"),
    "all NaN": Fault("Multiply", "Multiply"),
    "all zero": Fault("Activation", "Activation"),
    "output never written": Fault("Bias", "Bias"),
    "sums that are not snapped": Fault("Add", "Add"),
    "an integer rounded twice": Fault("MatMul[w16]", "MatMul"),
    "minima left out": Fault("MatMul[Q4_K]", "MatMul"),
    "the other rotary pairs": Fault("Rope", "Rope"),
    "experts added from the last": Fault("CombineExperts", "CombineExperts"),
    "a variance of moments": Fault("LayerNorm", "LayerNorm"),
    "a snapshot that goes on with its sequence": Fault("snapshot", "Attend"),
    "an export without low planes": Fault("export", "Attend"),
    "a tile given up too early": Fault("windows", "Attend"),
    "a state rounded once more": Fault("DeltaRule", "DeltaRule"),
    "a state summed row after row": Fault("StateSpace", "StateSpace"),
    "experts of every group": Fault("Route", "Route"),
    "an exponential of another library": Fault("Gain", "Gain"),
    "a state that a rewind leaves as it is": Fault("rewind", "DeltaRule"),
    DECLINES: Fault("", ""),
    DELEGATES: Fault("placement", ""),
}
"""Every fault; `declines everything` fails by computing nothing."""


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
        """As the reference, or nothing."""
        if self.fault == DECLINES:
            return Declined(f"{node.op.kind} is not implemented")
        return super().supports(node, graph, program)

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> ReferenceExecutable:
        """The reference's executable with wrong parts in it."""
        executable = _executable_type(self.fault)(program, weights, options)
        if self.fault == DELEGATES:
            executable.placement = dict.fromkeys(executable.placement, self.name)
        return executable


def _executable_type(fault: str) -> type[ReferenceExecutable]:
    class FaultyExecutable(ReferenceExecutable):
        """The reference's, with one part replaced."""

        kernels: ClassVar[Kernels] = {**KERNELS, **WRONG.get(fault, {})}
        answers: ClassVar[Answers] = {**ON_HOST, **WRONG_ANSWERS.get(fault, {})}
        state_type: ClassVar[type[StoredState]] = STATES.get(fault, StoredState)

    return FaultyExecutable
