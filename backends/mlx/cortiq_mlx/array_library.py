"""MLX as an array library: operations that round once, which the shared kernels are made of.

MLX runs one kernel an operation as long as `mx.compile` stays away, so nothing is contracted. What
is avoided: its sums, means and norms (their order is their own), `rsqrt`, `reciprocal`, fused
operations, and its transcendental functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from cortiq.backend import CompileOptions
from cortiq_mlx import custom_kernels, kernel_sources
from cortiq_mlx.attention import PlaneProducts
from cortiq_mlx.exact_sums import planes
from cortiq_mlx.library import DEVICES, description, mx, version
from cortiq_mlx.quantised_rows import (
    LARGEST,
    CachedPlanes,
    Faults,
    MlxRows,
    fixed,
    magnitude_bits,
    snap,
)


class MlxArrays(PlaneProducts):
    """MLX's arrays; a stream says on which device they are computed.

    Attributes
    ----------
    device : its name. own : names of our own kernels that are in use there (`trial`).
    """

    module: ClassVar[Any] = mx
    rows = MlxRows
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

    def stored(self, rows: MlxRows) -> tuple[mx.array, mx.array]:
        """Return rows as planes [rows, heads, 2, dim]."""
        return mx.stack([*planes(rows.q)], axis=2), rows.e

    def read(self, q: mx.array, e: mx.array) -> CachedPlanes:
        """Return rows as attention reads them."""
        return CachedPlanes(q, e)

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

    def padded(
        self, x: mx.array, before: int, after: int, axis: int = -1, fill: float = 0
    ) -> mx.array:
        """Return x with so many entries of one value, of its type, before and behind an axis."""
        widths = [(0, 0)] * x.ndim
        widths[axis] = before, after
        return mx.pad(x, widths, constant_values=mx.array(fill, x.dtype))

    def magnitude_bits(self, x: mx.array) -> mx.array:
        """Return the bits of |x|."""
        return magnitude_bits(x)

    def quantised(self, x: mx.array) -> MlxRows:
        """Return rows (last axis) as integers and exponents, by our own kernel where in use."""
        if custom_kernels.active(kernel_sources.QUANTISE):
            return MlxRows(*custom_kernels.quantise(x))
        return super().quantised(x)

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
        with mx.stream(DEVICES[self.device]), custom_kernels.using(self.own):
            yield


FLOATS = MlxArrays("cpu")
"""For functions of arrays, which are computed wherever their caller computes."""
