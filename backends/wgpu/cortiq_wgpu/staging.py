"""Memory that the host writes and the device copies from, used again and again."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from cortiq_wgpu.device import GpuDevice

STAGING_BYTES = 16 << 20
"""Bytes of each staging buffer; a multiple of `ALIGNED`."""
STAGING_BUFFERS = 4
"""While one is written the others are copied from."""
ALIGNED = 16
"""Alignment of what lies in a staging buffer."""


class StagingRing:
    """Staging buffers: what is put lies in one of them until it is full, then is copied at once.

    Nothing is on the device before `flush`. Memory of this kind is costly to allocate, so that it
    is kept; `Queue.write_buffer` allocates it for each write.
    """

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu = gpu
        self._idle: deque[Any] = deque()
        self._made = 0
        self._current: Any = None
        self._end = 0
        self._copies: list[tuple[Any, int, int, int]] = []

    def put(self, buffer: Any, offset: int, array: np.ndarray) -> None:
        """Write an array's bytes, whole words, to a place in a device buffer."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        while flat.size:
            if self._current is None:
                self._current, self._end = self._next(), 0
            piece = flat[: STAGING_BYTES - self._end]
            self._current.write_mapped(piece, self._end)
            self._copies.append((buffer, offset, self._end, piece.size))
            self._end += -(-piece.size // ALIGNED) * ALIGNED
            offset, flat = offset + piece.size, flat[piece.size :]
            if self._end >= STAGING_BYTES:
                self.flush()

    def _next(self) -> Any:
        """Return a buffer to write: a new one, or the one whose copies were asked for first."""
        if self._made < STAGING_BUFFERS:
            self._made += 1
            return self._gpu.staging(STAGING_BYTES)
        found = self._idle.popleft()
        found.map_sync("WRITE")
        return found

    def flush(self) -> None:
        """Submit the copies of what was put."""
        if self._current is None:
            return
        self._current.unmap()
        encoder = self._gpu.device.create_command_encoder()
        for buffer, offset, start, size in self._copies:
            encoder.copy_buffer_to_buffer(self._current, start, buffer, offset, size)
        self._gpu.device.queue.submit([encoder.finish()])
        self._idle.append(self._current)
        self._current, self._copies = None, []

    def close(self) -> None:
        """Submit what was put, and give the memory back once it is copied."""
        self.flush()
        for buffer in self._idle:
            buffer.destroy()
        self._idle.clear()
        self._made = 0
