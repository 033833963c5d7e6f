"""Planted faults as backends; nothing is imported until they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cortiq.hookspecs import hookimpl

if TYPE_CHECKING:
    from cortiq.backend import Backend


@hookimpl
def cortiq_backends() -> Sequence[Backend]:
    """Return a backend whose devices are faults, and one that declines everything."""
    from cortiq_faulty.backend import ChosenFault, DecliningBackend

    return [ChosenFault(), DecliningBackend()]
