"""Wants of rows that were checked before, and sizes of tables that were looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.backend.batch import Draw, Want
from cortiq.ir.overlays import OVERLAY, overlay_number


class KnownWants:
    """Wants of rows that were found answerable: checked once for a request, not once a step.

    They are told apart by identity, and held, so that no others can be at their addresses.

    Attributes
    ----------
    tables : how many rows or matrices the graph's indices choose from, once a row supplied one.
    """

    MOST = 1024

    def __init__(self) -> None:
        self._held: dict[int, tuple[Want, ...]] = {}
        self.tables: Mapping[str, int] | None = None

    def __contains__(self, wants: tuple[Want, ...]) -> bool:
        return self._held.get(id(wants)) is wants

    def fits(self, inputs: Mapping[str, Any]) -> bool:
        """Return whether a row's inputs certainly fit: those of an overlay that is there."""
        number = overlay_number(inputs)
        return number is not None and 0 <= number < (self.tables or {}).get(OVERLAY, 0)

    def add(self, wants: tuple[Want, ...]) -> None:
        """Note wants that have an answer; not with masks, which have kilobytes and change."""
        if any(isinstance(want, Draw) and want.mask for want in wants):
            return
        if len(self._held) >= self.MOST:
            self._held.clear()
        if type(wants) is tuple:
            self._held[id(wants)] = wants
