"""MLX as an array library: operations that round once, which the shared kernels are made of.

MLX runs one kernel an operation as long as `mx.compile` stays away, so nothing is contracted. What
is avoided: its sums, means and norms (their order is their own), `rsqrt`, `reciprocal`, fused
operations, and its transcendental functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from cortiq.backend import CompileOptions
from cortiq_mlx import bodies, custom
from cortiq_mlx.arithmetic import (
    LARGEST,
    SMALLEST,
    Faults,
    Planes,
    Rows,
    fixed,
    magnitude_bits,
    snap,
)
from cortiq_mlx.attention import PlaneProducts
from cortiq_mlx.exact import planes
from cortiq_mlx.library import DEVICES, description, mx, version


class MlxArrays(PlaneProducts):
    """MLX's arrays; a stream says on which device they are computed.

    Attributes
    ----------
    device : its name. own : names of our own kernels that are in use there (`trial`).
    """

    dtypes: ClassVar[Mapping[str, mx.Dtype]] = {
        "f32": mx.float32, "i32": mx.int32, "i16": mx.int16, "i8": mx.int8,
    }  # fmt: skip
    rows = Rows
    row_type = "i16"
    poison = (127, 60)

    def __init__(self, device: str, own: frozenset[str] = frozenset()) -> None:
        self.device, self.own = device, own

    def array(self, host: np.ndarray) -> mx.array:
        """Return a copy."""
        return mx.array(host)

    def host(self, array: mx.array) -> np.ndarray:
        """Return the values, which are computed now."""
        return np.array(array)

    def full(self, shape: Sequence[int], dtype: str, value: float = 0) -> mx.array:
        """Return an array that holds one value."""
        return mx.full(tuple(shape), value, self.dtypes[dtype])

    def cast(self, array: mx.array, dtype: str) -> mx.array:
        """Return the values in another type."""
        return array.astype(self.dtypes[dtype])

    def concatenate(self, arrays: Sequence[mx.array], axis: int = 0) -> mx.array:
        """Return the arrays as one."""
        return mx.concatenate([*arrays], axis=axis)

    def copy(self, array: mx.array) -> mx.array:
        """Return an array that shares memory until one of them is written to."""
        return array[:]

    def settle(self, arrays: Sequence[Any]) -> None:
        """Compute arrays, and what flags have seen."""
        for flags in arrays:
            if isinstance(flags, Faults):
                flags.peaks = [flags.seen()[:, None]]
        mx.eval([x.peaks if isinstance(x, Faults) else x for x in arrays])

    def snap(self, x: mx.array, faults: Faults) -> mx.array:
        """End a primitive."""
        return snap(x, faults)

    def flags(self, count: int) -> Any:
        """Return what has seen nothing yet."""
        return Faults(count)

    def flag(self, faults: Faults, index: Any, found: Faults, concerned: Any = True) -> None:
        """Have `faults` see what those of some rows saw."""
        if found.peaks:
            peak = mx.zeros(faults.rows, mx.int32)
            peak[index] = mx.where(concerned, found.seen(), 0)
            faults.see(peak)

    def gather_flags(self, faults: Faults, parts: Sequence[Faults]) -> None:
        """Note what several of their rows saw for each row."""
        seen = [part.seen() for part in parts]
        faults.see((mx.concatenate(seen) if len(seen) > 1 else seen[0]).reshape(faults.rows, -1))

    def raise_flags(self, faults: Faults, found: np.ndarray) -> None:
        """See values outside the domain in some rows."""
        faults.see(mx.array(np.where(found, LARGEST, 0).astype(np.int32)))

    def stored_shape(self, heads: int, dim: int) -> tuple[tuple[int, ...], str]:
        """Return shape and type of a row that is kept: two int8 planes."""
        return (heads, 2, dim), "i8"

    def stored(self, rows: Rows) -> tuple[mx.array, mx.array]:
        """Return rows as planes [rows, heads, 2, dim]."""
        return mx.stack([*planes(rows.q)], axis=2), rows.e

    def read(self, q: mx.array, e: mx.array) -> Planes:
        """Return rows as attention reads them."""
        return Planes(q, e)

    def to_planes(self, q: mx.array, e: mx.array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the planes on the host."""
        both = np.array(q)
        return both[:, :, 0].copy(), both[:, :, 1].copy(), np.array(e)

    def from_planes(self, high: Any, low: Any, e: Any) -> tuple[mx.array, mx.array]:
        """Return planes on the device."""
        return mx.array(np.stack([high, low], axis=2)), mx.array(e)

    def constant(self, value: float, x: mx.array) -> Any:
        """Return a constant beside x; see `fixed`."""
        return fixed(value, x)

    def bits(self, x: mx.array) -> mx.array:
        """Return the bits of float32 x as int32."""
        return x.view(mx.int32)

    def from_bits(self, n: mx.array) -> mx.array:
        """Return int32 n as the bits of float32."""
        return n.view(mx.float32)

    def where(self, condition: mx.array, a: Any, b: Any) -> mx.array:
        """Return a where the condition holds, else b."""
        return mx.where(condition, a, b)

    def magnitude(self, x: mx.array) -> mx.array:
        """Return |x|."""
        return mx.abs(x)

    def clamp(self, x: mx.array, low: float | None, high: float | None) -> mx.array:
        """Return x, no lower and no higher than these."""
        x = x if low is None else mx.maximum(x, fixed(low, x))
        return x if high is None else mx.minimum(x, fixed(high, x))

    def rounded(self, x: mx.array) -> mx.array:
        """Return x rounded to integers, half to even."""
        return mx.round(x)

    def root(self, x: mx.array) -> mx.array:
        """Return RN(√x)."""
        return mx.sqrt(x)

    def inverse(self, x: mx.array) -> mx.array:
        """Return RN(1/x)."""
        return fixed(1.0, x) / x

    def highest(self, x: mx.array) -> mx.array:
        """Return the largest value of the last axis, which stays."""
        return x.max(axis=-1, keepdims=True)

    def padded(self, x: mx.array, count: int) -> mx.array:
        """Return x with so many zeros behind the last axis."""
        return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)])

    def split(self, x: mx.array, widths: Sequence[int], axis: int = -1) -> Sequence[mx.array]:
        """Return parts of these widths along an axis."""
        return tuple(mx.split(x, list(accumulate(widths))[:-1], axis=axis))

    def stack(self, arrays: Sequence[mx.array], axis: int = 0) -> mx.array:
        """Return the arrays beside one another along a new axis."""
        return mx.stack([*arrays], axis=axis)

    def repeat(self, x: mx.array, count: int, axis: int = 0) -> mx.array:
        """Return x with each entry of an axis so many times."""
        return mx.repeat(x, count, axis=axis)

    def counted(self, count: int) -> mx.array:
        """Return 0, 1, …"""
        return mx.arange(count, dtype=mx.int32)

    def wide(self, n: mx.array) -> mx.array:
        """Return integers as int64."""
        return n.astype(mx.int64)

    def ascending(self, n: mx.array) -> mx.array:
        """Return n with the last axis in ascending order."""
        return mx.sort(n, axis=-1)

    def take_along(self, x: mx.array, index: mx.array) -> mx.array:
        """Return the values of the last axis at these places."""
        return mx.take_along_axis(x, index, axis=-1)

    def spread(self, x: mx.array, shape: Sequence[int]) -> mx.array:
        """Return x in a larger shape."""
        return mx.broadcast_to(x, tuple(shape))

    def quantised(self, x: mx.array) -> Rows:
        """Return rows (last axis) as integers and exponents; `cortiq.numerics.quantise_rows`."""
        if custom.active(bodies.QUANTISE):
            return Rows(*custom.quantise(x))
        m = magnitude_bits(x).max(axis=-1, keepdims=True)
        # A row below 2⁻⁴⁰ is all zeros, and gets the exponent of the smallest row that is not.
        top = (mx.maximum(m, fixed(SMALLEST, m)) + fixed(0x20000, m)) >> fixed(23, m)
        scale = ((fixed(141 + 127, top) - top) << fixed(23, m)).view(mx.float32)
        return Rows(mx.round(x * scale).astype(mx.int16), (top - fixed(141, top)).squeeze(-1))

    def provenance(self) -> dict[str, str]:
        """Return what computes here, for receipts: MLX and the device."""
        facts = {"mlx": version(), "device": description(self.device)}
        return {**facts, "kernels": " ".join(sorted(self.own))} if self.own else facts

    def free_bytes(self) -> int | None:
        """Return the memory that a GPU has free; None where it is the host's, as Apple's is."""
        if self.device == "cpu" or mx.metal.is_available():
            return None
        total = mx.device_info().get("memory_size")
        return None if total is None else int(total) - mx.get_active_memory()

    @contextmanager
    def running(self, options: CompileOptions) -> Iterator[None]:
        """Compute on the device, with our own kernels that are in use there."""
        with mx.stream(DEVICES[self.device]), custom.using(self.own):
            yield


FLOATS = MlxArrays("cpu")
"""For functions of arrays, which are computed wherever their caller computes."""
