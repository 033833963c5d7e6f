"""Torch as an array library: operations that round once, which the shared kernels are made of.

Eager torch computes what is written, one operation at a time, so nothing is contracted here. What
is avoided: its sums, means and norms (their order is their own), `addcmul`, `lerp` and other fused
operations, `rsqrt`, and its transcendental functions. Square roots are taken in float64, whose
result rounds to the right float32 whatever library computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cortiq.backend import CompileOptions
from cortiq.numerics import contract, quantise
from cortiq_torch.attention import Float64Products
from cortiq_torch.rows import Rows

MAGNITUDE = int(contract.MAGNITUDE_BITS)
SMALLEST = int(contract.SMALLEST_BITS)
LARGEST = int(contract.LARGEST_BITS)


def magnitude_bits(x: Tensor) -> Tensor:
    """Bits of |x|, int32."""
    return x.view(torch.int32) & MAGNITUDE


def snap(y: Tensor, faults: Tensor) -> Tensor:
    """Make y [rows, ...] canonical; rows with a value outside the domain are flagged in place."""
    bits = magnitude_bits(y)
    outside = bits >= LARGEST
    faults |= outside.reshape(len(y), -1).any(dim=1)
    return torch.where((bits < SMALLEST) | outside, 0.0, y)


class TorchArrays(Float64Products):
    """Tensors on one device; what is given tensors computes on theirs."""

    dtypes: ClassVar[Mapping[str, torch.dtype]] = {
        "f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i16": torch.int16,
        "i8": torch.int8,
    }  # fmt: skip
    rows = Rows
    row_type = "f64"

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
        return torch.full(tuple(shape), value, dtype=self.dtypes[dtype], device=self.device)

    def cast(self, array: Tensor, dtype: str) -> Tensor:
        """Return the values in another type."""
        return array.to(self.dtypes[dtype])

    def concatenate(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Return the tensors as one."""
        return torch.cat(tuple(arrays), dim=axis)

    def copy(self, array: Tensor) -> Tensor:
        """Return a copy."""
        return array.clone()

    def snap(self, x: Tensor, faults: Tensor) -> Tensor:
        """End a primitive."""
        return snap(x, faults)

    def bits(self, x: Tensor) -> Tensor:
        """Return the bits of float32 x as int32."""
        return x.view(torch.int32)

    def from_bits(self, n: Tensor) -> Tensor:
        """Return int32 n as the bits of float32."""
        return n.view(torch.float32)

    def where(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        """Return a where the condition holds, else b."""
        return torch.where(condition, a, b)

    def magnitude(self, x: Tensor) -> Tensor:
        """Return |x|."""
        return x.abs()

    def clamp(self, x: Tensor, low: float | None, high: float | None) -> Tensor:
        """Return x, no lower and no higher than these."""
        return x.clamp(low, high)

    def rounded(self, x: Tensor) -> Tensor:
        """Return x rounded to integers, half to even."""
        return x.round()

    def root(self, x: Tensor) -> Tensor:
        """Return RN(√x)."""
        return x.double().sqrt().float()

    def inverse(self, x: Tensor) -> Tensor:
        """Return RN(1/x). (A division by a Python number becomes a product on CUDA.)"""
        return torch.ones_like(x) / x

    def highest(self, x: Tensor) -> Tensor:
        """Return the largest value of the last axis, which stays."""
        return x.amax(dim=-1, keepdim=True)

    def padded(self, x: Tensor, count: int) -> Tensor:
        """Return x with so many zeros behind the last axis."""
        return torch.nn.functional.pad(x, (0, count))

    def split(self, x: Tensor, widths: Sequence[int], axis: int = -1) -> Sequence[Tensor]:
        """Return parts of these widths along an axis."""
        return [part.contiguous() for part in x.split(tuple(widths), dim=axis)]

    def stack(self, arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Return the tensors beside one another along a new axis."""
        return torch.stack(tuple(arrays), dim=axis)

    def repeat(self, x: Tensor, count: int, axis: int = 0) -> Tensor:
        """Return x with each entry of an axis so many times."""
        return x.repeat_interleave(count, dim=axis)

    def counted(self, count: int) -> Tensor:
        """Return 0, 1, …"""
        return torch.arange(count, dtype=torch.int32, device=self.device)

    def wide(self, n: Tensor) -> Tensor:
        """Return integers as int64."""
        return n.long()

    def ascending(self, n: Tensor) -> Tensor:
        """Return n with the last axis in ascending order."""
        return n.sort(dim=-1).values

    def take_along(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the values of the last axis at these places."""
        return x.gather(-1, index.long())

    def spread(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Return x in a larger shape."""
        return x.expand(tuple(shape))

    def quantised(self, x: Tensor) -> Rows:
        """Return rows (last axis) as integers and exponents; `cortiq.numerics.quantise_rows`."""
        m = magnitude_bits(x).amax(dim=-1)
        empty = m < SMALLEST
        e = torch.where(empty, quantise.ZERO_ROW_EXPONENT, ((m + 0x20000) >> 23) - 141).int()
        q = (x * self.exp2_int(-e)[..., None]).round()
        return Rows(torch.where(empty[..., None], 0.0, q).double(), e)

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


FLOATS = TorchArrays("cpu")
"""For functions of tensors, which need no device of their own."""
