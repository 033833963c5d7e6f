"""A backend whose devices are planted faults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cortiq.backend import CompileOptions, Device, Executable, Versions
from cortiq.errors import BackendError
from cortiq.ir import Program
from cortiq.numerics.layouts import Weight
from cortiq_conformance.faults import FAULTS, FaultyBackend
from cortiq_conformance.faults.table import DECLINES
from cortiq_reference.backend import ReferenceBackend

VERSIONS = Versions(hookspec=1, ir=1, contract=1)


def device_name(fault: str) -> str:
    """Return a fault's name as one word."""
    return re.sub(r"[^a-z0-9]+", "-", fault.lower()).strip("-")


BY_DEVICE: Mapping[str, str] = {device_name(f): f for f in FAULTS if f != DECLINES}


class ChosenFault(ReferenceBackend):
    """The reference with the fault that the device names."""

    name = "faulty"
    priority = -2
    versions = VERSIONS

    def devices(self) -> Sequence[Device]:
        """Return one device for every fault."""
        return [
            Device(name, f"{fault}; {FAULTS[fault].sentence()}")
            for name, fault in BY_DEVICE.items()
        ]

    def compile(  # type: ignore[override]
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> Executable:
        """Compile the reference's executable with the fault in it.

        Raises
        ------
        BackendError : no fault is chosen.
        """
        fault = BY_DEVICE.get(options.device or "")
        if fault is None:
            hint = "cortiq backends lists them"
            raise BackendError("choose a fault: --backend faulty:FAULT", hint=hint)
        return FaultyBackend(fault).compile(program, weights, options)


class DecliningBackend(FaultyBackend):
    """Declines everything."""

    priority = -2
    versions = VERSIONS

    def __init__(self) -> None:
        super().__init__(DECLINES)
        self.name = "faulty-declines"
