"""Backends with one planted fault each, built on the reference: the harness is tested too."""

from __future__ import annotations

from cortiq_conformance.faults.backend import FaultyBackend
from cortiq_conformance.faults.fault import Fault
from cortiq_conformance.faults.table import FAULTS

__all__ = ["FAULTS", "Fault", "FaultyBackend"]
