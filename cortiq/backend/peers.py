"""Devices that compute one program together, and what they agree on while they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Peers(Protocol):
    """The devices that run the same batches, each with its share of the program."""

    @property
    def size(self) -> int:
        """Number of devices, this one among them."""

    def any_of(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return for each flag whether it is set on some device; all of them call this at once.

        Raises
        ------
        BackendError : a device was lost.
        """


class Alone:
    """One device, with nobody to agree with."""

    size = 1

    def any_of(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return the flags."""
        return flags


ALONE = Alone()
