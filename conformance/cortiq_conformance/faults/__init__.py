"""Backends with one planted fault each, built on the reference: the harness is tested too."""

from __future__ import annotations

from cortiq_conformance.faults.backend import FAULTS, Fault, FaultyBackend

__all__ = ["FAULTS", "Fault", "FaultyBackend"]
