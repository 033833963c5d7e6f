"""The overlay that a request chose: an adapter beside the model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.backend.batch import NO_INPUTS
from cortiq.ir.overlays import overlay_inputs


@dataclass(frozen=True, eq=False)
class ChosenOverlay:
    """An overlay, as the executable that computes it numbers it.

    Its number is another's only when nobody holds this object any more.

    Attributes
    ----------
    name : what the caller calls it. sha256 : hash of the adapter's files. scale : its factor.
    number : its place in banks, from 1.
    """

    name: str
    sha256: str
    scale: float
    number: int

    @property
    def key(self) -> str:
        """The facts that decide its bits, for caches of prefixes."""
        return f"{self.sha256}:{self.scale!r}"


def key_of(overlay: ChosenOverlay | None) -> str:
    """Return what decides the bits of a request's overlay; empty for none."""
    return "" if overlay is None else overlay.key


def facts_of(overlay: ChosenOverlay | None) -> tuple[str, float] | None:
    """Return hash and scale of a request's overlay; None without one."""
    return None if overlay is None else (overlay.sha256, overlay.scale)


def session_inputs(overlay: ChosenOverlay | None) -> Mapping[str, Any]:
    """Return what a row of an overlay supplies in a batch of one sequence."""
    return NO_INPUTS if overlay is None else overlay_inputs(overlay.number)
