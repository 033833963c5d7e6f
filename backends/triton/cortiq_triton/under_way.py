"""Batches under way, and the executable that they are of, as those who wait for them see both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cortiq.backend import Batch, BatchResult, Row
from cortiq.backend.executable import Accepted
from cortiq_triton.call import Shared
from cortiq_triton.plan import Plan
from cortiq_triton.shapes import Scratch
from cortiq_triton.state import TritonState


class Owner(Protocol):
    """An executable, as far as steps of decoding concern it; see `BaseExecutable`."""

    device: str
    drawn: Sequence[int | None]
    shared: Shared
    vocabulary: int

    def scratch(self) -> Scratch:
        """Return what stands for one more sequence."""

    def owns(self, state: Any) -> bool:
        """Check whether a state is a living sequence of it."""

    def lets_in(self, plan: Plan, entry: str, row: Row, token: int) -> bool:
        """Check whether a row certainly can be computed, with its room there."""

    def refusal(self, plan: Plan, batch: Batch, sequence: Accepted[TritonState]) -> str | None:
        """Say why a sequence's rows cannot be computed."""

    def device_bytes(self) -> int:
        """Return the memory that the device has free."""

    def settle(self, last: UnderWay | None = None) -> None:
        """Wait for what is under way, up to a batch if one is given."""


class UnderWay(Protocol):
    """A batch that was launched and perhaps not read.

    Attributes
    ----------
    states : sequences with rows in it. lost : those that a batch before it failed.
    outcome, drawn : what it brought and drew, once it was read.
    """

    lost: set[TritonState]
    outcome: BatchResult | None
    drawn: Sequence[int | None]

    @property
    def states(self) -> Sequence[TritonState]:
        """Sequences with rows in it."""

    def draws(self, row: Any) -> bool:
        """Whether a row draws an id."""

    def finish(self, before: Sequence[int | None]) -> None:
        """Read it; `before` is what the batch before drew."""
