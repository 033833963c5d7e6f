"""Open devices: each adapter once, self tested before it is used."""

from __future__ import annotations

from cortiq_wgpu import adapters
from cortiq_wgpu.device import GpuDevice
from cortiq_wgpu.self_test import check_device

_open: dict[tuple[str, bool], GpuDevice] = {}


def opened(device: str | None, portable_dot: bool = False) -> GpuDevice:
    """Return the device of an adapter's name or number; open and test it if it is not open.

    Raises
    ------
    BackendError : there is no such adapter, or it computes other bits than the contract has.
    """
    name, adapter = adapters.chosen(device)
    known = _open.get((name, portable_dot))
    if known is None or not known.answers():
        known = GpuDevice(name, adapter)
        if portable_dot:
            known.use_portable_dot()
        check_device(known)
        _open[name, portable_dot] = known
    return known
