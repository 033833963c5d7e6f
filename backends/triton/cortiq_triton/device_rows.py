"""Values that stay on the device between batches, and arrays on their way to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cortiq.backend.held_rows import HeldRows
from cortiq_triton.fetched import copied_to_host
from cortiq_triton.rowset import pinned, uploaded


class DeviceRows(HeldRows):
    """Values of a batch's rows on the device.

    Attributes
    ----------
    values : the tensor that has them.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self._fetched: tuple[torch.Tensor, torch.cuda.Event | None] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape."""
        return tuple(self.values.shape)

    def __getitem__(self, index: Any) -> DeviceRows:
        if not isinstance(index, np.ndarray):
            return DeviceRows(self.values[index])
        flat = uploaded(index.astype(np.int32).reshape(-1), self.values.device)
        return DeviceRows(self.values.index_select(0, flat)).reshape(*index.shape, *self.shape[1:])

    def reshape(self, *shape: int) -> DeviceRows:
        """Return the same values in another shape."""
        return DeviceRows(self.values.reshape(shape))

    def joined(self, others: Sequence[DeviceRows], axis: int) -> DeviceRows:
        """Return these and others as one, along an axis."""
        return DeviceRows(torch.cat([self.values, *(other.values for other in others)], axis))

    def fetch(self) -> None:
        """Start bringing the values to the host."""
        if self._fetched is None:
            copy, event = copied_to_host(self.values), None
            if self.values.device.type != "cpu":
                event = torch.cuda.Event()
                event.record(torch.cuda.current_stream(self.values.device))
            self._fetched = copy, event

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.fetch()
        assert self._fetched is not None
        values, event = self._fetched
        if event is not None:
            event.synchronize()
        found = values.numpy()
        return found.astype(dtype or found.dtype, copy=bool(copy))


def uploaded_together(parts: Sequence[np.ndarray], kind: Any, device: str) -> torch.Tensor:
    """Return arrays one after another on the device, which are copied once on the host."""
    count, shape = sum(map(len, parts)), parts[0].shape[1:]
    if device == "cpu":
        return torch.from_numpy(np.concatenate(parts, dtype=kind, casting="unsafe"))
    host = pinned(count * int(np.prod(shape)) * np.dtype(kind).itemsize)
    whole = host.numpy().view(kind).reshape(count, *shape)
    np.concatenate(parts, out=whole, casting="unsafe")
    there = host.to(device, non_blocking=True)
    return there.view(torch.float32 if kind is np.float32 else torch.int32).view(count, *shape)
