"""Memory that the ranks of a host open to one another: of GPUs by CUDA's handles, in Triton's
interpreter as files.

It begins with int64 words: the count of exchanges, and whether a peer was given up. Then come int64
flags [SLOTS, ranks, PROGRAMS], then float32 data [SLOTS, room] of whole rows.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cortiq.errors import BackendError
from cortiq_triton import nvrtc

FLAGS = 128
"""Bytes before the flags."""
SLOTS = 2
"""Exchanges whose data lie beside each other."""
PROGRAMS = 4096
"""Programs of an exchange at most: each has a flag."""
ROOM = 1 << 23
"""Floats of an exchange at most, all ranks' together."""
PEER_ACCESS = 1
"""CUDA's flag of opening memory of another device."""
HANDLE = ctypes.c_char * 64


def data_at(size: int) -> int:
    """Byte at which data begin, of so many ranks."""
    return FLAGS + 8 * SLOTS * size * PROGRAMS


class _Handle(ctypes.Structure):
    """`CUipcMemHandle`."""

    _fields_ = (("bytes", HANDLE),)


class _Bytes:
    """Memory of the current device as PyTorch takes it from others."""

    def __init__(self, place: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (place, False), "version": 3,
        }  # fmt: skip


class GPUMemory:
    """Memory of the current GPU.

    Attributes
    ----------
    tensor : its bytes. handle : by which processes of the host open it.
    """

    def __init__(self, size: int, device: str) -> None:
        self._place, self._opened, handle = ctypes.c_void_p(), list[ctypes.c_void_p](), _Handle()
        torch.cuda.current_stream()  # the device's context is there, and current
        cuda, self.device = nvrtc.driver(), device
        nvrtc.checked(cuda.cuMemAlloc_v2(ctypes.byref(self._place), ctypes.c_size_t(size)))
        nvrtc.checked(cuda.cuIpcGetMemHandle(ctypes.byref(handle), self._place))
        self.handle = bytes(handle)
        self.tensor = torch.as_tensor(_Bytes(self._place.value or 0, size), device=device)
        self.tensor.zero_()
        torch.cuda.synchronize(device)

    def opened(self, handle: bytes) -> int:
        """Return where another process's memory is for this device."""
        found = ctypes.c_void_p()
        given = _Handle.from_buffer_copy(handle)
        nvrtc.checked(nvrtc.driver().cuIpcOpenMemHandle_v2(ctypes.byref(found), given, PEER_ACCESS))
        self._opened.append(found)
        return found.value or 0

    def close(self) -> None:
        """Give it back, and let go of what was opened."""
        for place in self._opened:
            nvrtc.driver().cuIpcCloseMemHandle(place)
        nvrtc.driver().cuMemFree_v2(self._place)
        self._opened.clear()


class HostMemory:
    """Memory of the host, for Triton's interpreter: a file that its processes map."""

    def __init__(self, size: int) -> None:
        file, self._path = tempfile.mkstemp(prefix="cortiq-rows-")
        os.truncate(file, size)
        os.close(file)
        self.handle, self._opened = self._path.encode(), list[torch.Tensor]()
        self.tensor = torch.from_file(self._path, shared=True, size=size, dtype=torch.uint8)

    def opened(self, handle: bytes) -> int:
        """Return where another process's memory is in this one."""
        size = self.tensor.numel()
        found = torch.from_file(handle.decode(), shared=True, size=size, dtype=torch.uint8)
        self._opened.append(found)
        return found.data_ptr()

    def close(self) -> None:
        """Remove the file; what is mapped stays until nobody has it."""
        Path(self._path).unlink(missing_ok=True)


class PeerMemory:
    """This rank's memory, and where that of its peers is.

    Attributes
    ----------
    rank, size : this rank, and how many there are. handle : by which the others open its memory.
    words : what its memory begins with. addresses : int64, on the device: of each rank's memory,
        then of `stop`. stop : a number in the host's memory that kernels see, too: not 0 once a
        peer was given up. polls : how often a program looks for a peer's data before that.
    """

    def __init__(self, device: str, rank: int, size: int, seconds: float, room: int = ROOM) -> None:
        self.rank, self.size, self.room, self.device = rank, size, room, device
        count = data_at(size) + 4 * SLOTS * room + 8 * PROGRAMS * size  # the last for `mirror`
        gpu, self._closed = device != "cpu", False
        try:
            self._memory: Any = GPUMemory(count, device) if gpu else HostMemory(count)
        except (RuntimeError, OSError) as error:
            raise BackendError(f"a rank's memory is not to be shared: {error}") from error
        self.handle: bytes = self._memory.handle
        self.words = self._memory.tensor[:FLAGS].view(torch.int64)
        self.stop = torch.zeros(1, dtype=torch.int32, pin_memory=gpu)
        self.polls = int(min(seconds * (1e6 if gpu else 2e4), 2.0**31 - 1))
        self.addresses = torch.zeros(size + 1, dtype=torch.int64)

    def connect(self, handles: Sequence[bytes]) -> None:
        """Open the memory of the others.

        Raises
        ------
        BackendError : why one is not to be had.
        """
        own = self._memory.tensor.data_ptr()
        try:
            places = [
                own if rank == self.rank else self._memory.opened(handle)
                for rank, handle in enumerate(handles)
            ]
        except (RuntimeError, OSError) as error:
            raise BackendError(f"a GPU has no access to another's memory: {error}") from error
        self.use(places)

    def mirror(self) -> None:
        """Be every peer itself, to measure: flags that it sets for them are theirs for it."""
        own, step = self._memory.tensor.data_ptr(), 8 * PROGRAMS
        self.use([own + (peer - self.rank) * step for peer in range(self.size)])

    def use(self, places: Sequence[int]) -> None:
        """Take where every rank's memory is."""
        there = torch.tensor([*places, self.stop.data_ptr()], dtype=torch.int64)
        self.addresses = there.to(self.device)

    @property
    def lost(self) -> bool:
        """Whether a peer was given up."""
        return bool(self.stop[0])

    def give_up(self) -> None:
        """End exchanges that wait for a peer, and do not wait in others."""
        self.stop[0] = 1

    def close(self) -> None:
        """Give the memory back."""
        if not self._closed:
            self._memory.close()
        self._closed = True
