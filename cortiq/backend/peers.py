"""Devices that compute one program together, and what they agree on while they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


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

    def launches(self, device: str) -> bool:
        """Check whether what is exchanged on a device is launched there, as kernels are: then
        batches can be captured, and `worst` agrees on their faults.
        """

    def worst(self, flags: Any) -> Any:
        """Return the largest of all devices' flags, int32 tensors of PyTorch, where they are; it
        raises nothing, as kernels do.
        """

    def wait(self, event: Any) -> None:
        """Wait for an event of PyTorch on this device.

        Raises
        ------
        BackendError : a device was lost, so that this one waits for it without end.
        """


class PeerRows(Protocol):
    """Memory of a device that its peers write their parts of rows to, and what exchanges by it.

    Attributes
    ----------
    handle : by which processes of the host open the memory.
    """

    handle: bytes

    def connect(self, handles: Sequence[bytes]) -> None:
        """Open the memory of all peers, in their order.

        Raises
        ------
        BackendError : why that is not to be had.
        """

    def kernel(self, other: Any) -> Any:
        """Return a `Kernel.function` of `cortiq.ranks.exchange.GatherParts`; `other` is one that
        computes what this does not.
        """

    def gather(self, part: Any) -> Any:
        """Return every peer's tensor, of numbers of 32 bits, [peers, ...]; it raises nothing."""

    @property
    def lost(self) -> bool:
        """Whether a peer did not come in time: what was exchanged since means nothing."""

    def give_up(self) -> None:
        """End exchanges that wait for a peer."""

    def close(self) -> None:
        """Give the memory back."""


class Alone:
    """One device, with nobody to agree with."""

    size = 1

    def any_of(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return the flags."""
        return flags

    def launches(self, device: str) -> bool:
        """Return True: nothing is exchanged."""
        return True

    def worst(self, flags: Any) -> Any:
        """Return the flags."""
        return flags

    def wait(self, event: Any) -> None:
        """Wait; nothing else can keep the device."""
        event.synchronize()


ALONE = Alone()
