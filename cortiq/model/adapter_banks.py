"""Banks of an executable's overlays: made once for several, and changed where one is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.backend import Executable
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.ir import Program
from cortiq.ir.overlays import OverlayChange
from cortiq.model.machine import memory
from cortiq.model.source import ModelSource
from cortiq.models.overlay_banks import (
    Key,
    Overlay,
    bank_bytes,
    banks_of,
    changes_of,
    fits,
    part_of,
)
from cortiq.numerics.layouts import Weight

SPARE = 3
"""Numbers that banks have left at least, or a quarter, where a backend can change one alone."""


class AdapterBanks:
    """The banks that an executable holds, and which overlays are in them.

    Parameters
    ----------
    budget : most bytes of banks; None for what the machine has free.
    """

    def __init__(self, executable: Executable, source: ModelSource, budget: int | None) -> None:
        self._executable, self._source, self._budget = executable, source, budget
        self._current: list[Overlay | None] | None = []
        self._banks: tuple[Program, Mapping[Key, OverlayChange]] | None = None
        self._room = 0

    def sync(self, overlays: list[Overlay | None]) -> None:
        """Have the executable hold these overlays, None where a number is free.

        Raises
        ------
        BackendError, DeclinedError : the backend computes no overlays.
        """
        current = self._current
        same = (
            current is not None
            and len(overlays) == len(current)
            and all(one is other for one, other in zip(overlays, current, strict=True))
        )
        if same:
            return
        before, self._current = self._current, None  # if this fails it is not known what is there
        with attributed_to(backend_names(self._executable)):
            if not any(overlays):
                self._banks = None
                self._executable.vary(None, {})
            elif not self._revised(before, overlays):
                self._made_anew(overlays)
        self._current = overlays

    def _revised(self, before: list[Overlay | None] | None, now: list[Overlay | None]) -> bool:
        """Have the banks that are there hold what was loaded since; False where they cannot."""
        if before is None or self._banks is None or len(now) > self._room:
            return False
        program, changes = self._banks
        there = [*before, *[None] * len(now)]
        new = [(at, one) for at, one in enumerate(now) if one is not None and one is not there[at]]
        if not all(fits(one, changes) for _, one in new):
            return False
        parts = ((1 + at, part_of(program, changes, 1 + self._room, one)) for at, one in new)
        return all(self._executable.revise(number, part) for number, part in parts)

    def _made_anew(self, overlays: list[Overlay | None]) -> None:
        """Make banks, with room for some more where there is memory for it."""
        own = self._executable.program
        count = max(SPARE, len(overlays) // 4) if self._executable.revise(0, {}) else 0
        spare: list[Overlay | None] = [None] * count
        most = memory()["free"] if self._budget is None else self._budget
        if most is not None and bank_bytes(own, [*overlays, *spare]) > most:
            spare = []
        program, banks = banks_of(own, [*overlays, *spare], self._source.weights)
        self._room, self._banks = len(overlays) + len(spare), (program, changes_of(overlays))
        self._executable.vary(program, _Joined(self._source.weights, banks, program.weights))


class _Joined(Mapping[str, Weight]):
    """The model's weights and banks."""

    def __init__(self, base: Mapping[str, Weight], banks: Mapping[str, Weight], names: Any) -> None:
        self._base, self._banks, self._names = base, banks, names

    def __getitem__(self, name: str) -> Weight:
        found = self._banks.get(name)
        return self._base[name] if found is None else found

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
