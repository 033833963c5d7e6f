"""Values that stay on the device between batches, and arrays on their way to it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch

from cortiq.backend.held_rows import HeldRows
from cortiq_triton.fetched import copied_to_host
from cortiq_triton.rowset import pinned, uploaded

COPIERS, LARGE = 8, 1 << 22
"""Threads that copy arrays on the host, at most, and bytes from which several do."""


class DeviceRows(HeldRows):
    """Values of a batch's rows on the device.

    Attributes
    ----------
    values : the tensor that has them. brought : whether they are those of a batch that was read,
        or a part of them: the device has computed them.
    """

    def __init__(self, values: torch.Tensor, brought: bool = False) -> None:
        self.values, self.brought = values, brought

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape."""
        return tuple(self.values.shape)

    def __getitem__(self, index: Any) -> DeviceRows:
        if not isinstance(index, np.ndarray):
            return DeviceRows(self.values[index], self.brought)
        flat = uploaded(index.astype(np.int32).reshape(-1), self.values.device)
        return DeviceRows(self.values.index_select(0, flat)).reshape(*index.shape, *self.shape[1:])

    def reshape(self, *shape: int) -> DeviceRows:
        """Return the same values in another shape."""
        return DeviceRows(self.values.reshape(shape))  # perhaps a copy

    def joined(self, others: Sequence[DeviceRows]) -> DeviceRows:
        """Return these and others one after another."""
        return DeviceRows(torch.cat([self.values, *(other.values for other in others)]))

    def fetched(self, beside: Sequence[DeviceRows] = ()) -> Callable[[], np.ndarray]:
        """Start bringing the values to the host beside others; return what waits for them.

        Values that a batch brought are there: the copy does not queue behind later batches.
        """
        parts, device = [self, *beside], self.values.device
        if device.type == "cpu":
            return torch.cat([part.values for part in parts], dim=-1).numpy
        stream = _copying(device)
        if not all(part.brought for part in parts):
            stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            whole = parts[0].values
            if beside:
                whole = torch.cat([part.values for part in parts], dim=-1)
            host, event = copied_to_host(whole), torch.cuda.Event()
            event.record(stream)
        for part in parts:
            part.values.record_stream(stream)

        def wait() -> np.ndarray:
            event.synchronize()
            return host.numpy()

        return wait


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which values go to the host."""
    return torch.cuda.Stream(device)


@cache
def _copiers() -> ThreadPoolExecutor:
    """Return threads that copy on the host."""
    return ThreadPoolExecutor(max(1, min(COPIERS, os.cpu_count() or 1)), "copy")


def _copy(there: np.ndarray, part: np.ndarray) -> None:
    with np.errstate(over="ignore"):  # float64 beyond float32 is infinite, and so a fault
        np.copyto(there, part, casting="unsafe")


def uploaded_together(parts: Sequence[np.ndarray], kind: Any, device: str) -> torch.Tensor:
    """Return arrays one after another on the device, which are copied once on the host."""
    ends = np.cumsum([len(part) for part in parts])
    shape = (int(ends[-1]), *parts[0].shape[1:])
    size = math.prod(shape) * np.dtype(kind).itemsize
    host = torch.empty(size, dtype=torch.uint8) if device == "cpu" else pinned(size)
    cuts = np.split(host.numpy().view(kind).reshape(shape), ends[:-1])
    copied = map if size < LARGE else _copiers().map
    for _ in copied(_copy, cuts, parts):
        pass
    there = host.to(device, non_blocking=True)
    return there.view(torch.float32 if kind is np.float32 else torch.int32).view(shape)
