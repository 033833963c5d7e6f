"""Torch as an array library: operations that round once, which the shared kernels are made of.

Eager torch computes what is written, one operation at a time, so nothing is contracted here. What
is avoided: its sums, means and norms (their order is their own), `addcmul`, `lerp` and other fused
operations, `rsqrt`, and its transcendental functions. Square roots are taken in float64, whose
result rounds to the right float32 whatever library computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cortiq.backend import CompileOptions
from cortiq.backend.float64 import Float64Arrays


class TorchRows(NamedTuple):
    """Quantised rows x ≈ q·2^e: q float64 [..., K], which holds integers, and e int32 [...]."""

    q: Tensor
    e: Tensor


class TorchArrays(Float64Arrays):
    """Tensors on one device: what torch calls otherwise than NumPy does, or rounds otherwise."""

    module: ClassVar[Any] = torch
    rows = TorchRows

    def __init__(self, device: str) -> None:
        self.device = device

    def array(self, host: np.ndarray) -> Tensor:
        """Return a copy on the device."""
        return torch.tensor(host, device=self.device)

    def host(self, array: Tensor) -> Any:
        """Return the values, which wait for what is under way."""
        return array.cpu().numpy().copy()

    def full(self, shape: Sequence[int], dtype: str, value: float = 0) -> Tensor:
        """Return a tensor that holds one value."""
        return torch.full(tuple(shape), value, dtype=self.dtype(dtype), device=self.device)

    def cast(self, array: Tensor, dtype: str) -> Tensor:
        """Return the values in another type."""
        return array.to(self.dtype(dtype))

    def copy(self, array: Tensor) -> Tensor:
        """Return a copy."""
        return array.clone()

    def clamp(self, x: Tensor, low: float | None, high: float | None) -> Tensor:
        """Return x, no lower and no higher than these."""
        return x.clamp(low, high)

    def root(self, x: Tensor) -> Tensor:
        """Return RN(√x)."""
        return x.double().sqrt().float()

    def inverse(self, x: Tensor) -> Tensor:
        """Return RN(1/x). (A division of a Python number is a product on CUDA.)"""
        return torch.ones_like(x) / x

    def highest(self, x: Tensor) -> Tensor:
        """Return the largest value of the last axis, which stays."""
        return x.amax(dim=-1, keepdim=True)

    def padded(self, x: Tensor, before: int, after: int, axis: int = -1, fill: float = 0) -> Tensor:
        """Return x with so many entries of one value before and behind an axis."""
        behind = -1 - axis if axis < 0 else x.ndim - 1 - axis
        return torch.nn.functional.pad(x, (0, 0) * behind + (before, after), value=fill)

    def split(self, x: Tensor, widths: Sequence[int], axis: int = -1) -> Sequence[Tensor]:
        """Return parts of these widths along an axis."""
        return [part.contiguous() for part in x.split(tuple(widths), dim=axis)]

    def repeat(self, x: Tensor, count: int, axis: int = 0) -> Tensor:
        """Return x with each entry of an axis so many times."""
        return x.repeat_interleave(count, dim=axis)

    def counted(self, count: int) -> Tensor:
        """Return 0, 1, …"""
        return torch.arange(count, dtype=torch.int32, device=self.device)

    def ascending(self, n: Tensor) -> Tensor:
        """Return n with the last axis in ascending order."""
        return n.sort(dim=-1).values

    def take_along(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the values of the last axis at these places."""
        return x.gather(-1, index.long())

    def running_highest(self, n: Tensor) -> Tensor:
        """Return the largest integer so far along the first axis."""
        return n.cummax(dim=0).values

    def provenance(self) -> dict[str, str]:
        """Return what computes here, for receipts: PyTorch, CUDA, the device."""
        facts = {"torch": str(torch.__version__), "device": self.device}
        if self.device != "cpu":
            facts["device"] = torch.cuda.get_device_name(self.device)
            facts["cuda"] = str(torch.version.cuda)
        return facts

    def free_bytes(self) -> int | None:
        """Return the memory that a GPU has free."""
        return None if self.device == "cpu" else torch.cuda.mem_get_info(self.device)[0]

    @contextmanager
    def running(self, options: CompileOptions) -> Iterator[None]:
        """Let torch use so many host threads, 0 for what it chose itself."""
        before = torch.get_num_threads()
        if options.threads:
            torch.set_num_threads(options.threads)
        try:
            yield
        finally:
            if options.threads:
                torch.set_num_threads(before)
