"""Devices that are open: each adapter once, self tested before it is used."""

from __future__ import annotations

from cortiq_wgpu import adapters
from cortiq_wgpu.device import Gpu
from cortiq_wgpu.self_test import check_device

_open: dict[tuple[str, bool], Gpu] = {}


def opened(device: str | None, portable_dot: bool = False) -> Gpu:
    """The open device of an adapter's name or number; opened, and looked at, if it is not.

    Raises
    ------
    BackendError : there is no such adapter, or it computes other bits than the contract has.
    """
    name, adapter = adapters.chosen(device)
    known = _open.get((name, portable_dot))
    if known is None or not known.answers():
        known = Gpu(name, adapter)
        if portable_dot:
            known.use_portable_dot()
        check_device(known)
        _open[name, portable_dot] = known
    return known
