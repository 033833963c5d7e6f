"""A backend whose devices are planted faults; the table of faults is imported on use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from cortiq.backend import CompileOptions, Declined, Device, Executable, Support, Versions
from cortiq.errors import BackendError
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight
from cortiq_reference.backend import ReferenceBackend

VERSIONS = Versions(hookspec=1, ir=1, contract=1)


def device_name(fault: str) -> str:
    """Return a fault's name as one word."""
    return re.sub(r"[^a-z0-9]+", "-", fault.lower()).strip("-")


@cache
def faults_by_device() -> Mapping[str, str]:
    """Return the name of every fault that can be chosen, by its device."""
    from cortiq_conformance.faults import FAULTS
    from cortiq_conformance.faults.table import DECLINES

    return {device_name(fault): fault for fault in FAULTS if fault != DECLINES}


class ChosenFault(ReferenceBackend):
    """The reference with the fault that the device names."""

    name = "faulty"
    priority = -2
    for_tests = True
    versions = VERSIONS

    def devices(self) -> Sequence[Device]:
        """Return one device for every fault."""
        from cortiq_conformance.faults import FAULTS

        return [
            Device(name, f"{fault}; {FAULTS[fault].sentence()}")
            for name, fault in faults_by_device().items()
        ]

    def compile(  # type: ignore[override]
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> Executable:
        """Compile the reference's executable with the fault in it.

        Raises
        ------
        BackendError : no fault is chosen.
        """
        from cortiq_conformance.faults import FaultyBackend

        fault = faults_by_device().get(options.device or "")
        if fault is None:
            hint = "cortiq backends --all lists them"
            raise BackendError("choose a fault: --backend faulty:FAULT", hint=hint)
        return FaultyBackend(fault).compile(program, weights, options)


class DecliningBackend(ReferenceBackend):
    """Declines everything."""

    name = "faulty-declines"
    priority = -2
    for_tests = True
    versions = VERSIONS

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Decline."""
        return Declined(f"{node.op.kind} is not implemented")
