"""Weights as matrices for array libraries with float64: products, look-ups, stacks.

Whatever order a library multiplies and adds whole integers in, one rounding remains: that of a
block's integer to float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cortiq.numerics.contract import RUN_BLOCKS
from cortiq.numerics.layouts import Weight, decode, floats
from cortiq.numerics.matmul import check_columns

if TYPE_CHECKING:
    from cortiq.backend.float64 import Float64Arrays

CELLS = 1 << 21
"""Numbers that a product holds at a time, about."""


class Float64Matrix:
    """A weight [N, K]: codes by blocks of columns with their scales, or plain floats.

    Codes stay small integers in memory; a product converts a tile of them.
    """

    def __init__(self, library: Float64Arrays, weight: Weight, name: str) -> None:
        self.library = library
        self.height, self.width = weight.shape
        self.floating = weight.layout.kind == "float"
        if self.floating:
            self.values = library.array(floats(weight, name))
            return
        codes = decode(weight, name)
        self.block = min(codes.block, self.width)
        stored = np.asarray(codes.codes)
        self.small = int(np.abs(stored).max(initial=0)) <= np.iinfo(np.int8).max
        self.codes = self.by_block(
            library.array(stored.astype(np.int8 if self.small else np.int32))
        )
        self.scale = library.array(np.ascontiguousarray(codes.scale.T[:, None]))
        self.minimum: Any = None
        self.offsets: Any = None
        if codes.minimum is not None and codes.offsets is not None:
            self.sub = codes.sub
            subs = self.block // self.sub
            self.minimum = library.array(np.ascontiguousarray(codes.minimum.T[:, None]))
            offsets = codes.offsets.reshape(self.height, -1, subs).swapaxes(0, 1)
            self.offsets = library.array(np.ascontiguousarray(offsets))

    def by_block(self, x: Any) -> Any:
        """Return [rows, K] as [blocks, rows, block], the last block filled up with zeros."""
        x = self.library.padded(x, 0, -self.width % self.block)
        return x.reshape(len(x), -1, self.block).swapaxes(0, 1)

    def joins(self, other: Float64Matrix) -> bool:
        """Return whether both can be rows of one matrix."""
        if self.floating or other.floating:
            return False
        mine, theirs = (self.small, self.block), (other.small, other.block)
        return mine == theirs and (self.minimum is None) == (other.minimum is None)

    @staticmethod
    def joined(parts: Sequence[Float64Matrix]) -> Float64Matrix:
        """Return one matrix with the rows of all parts."""
        whole = object.__new__(type(parts[0]))
        whole.__dict__.update(parts[0].__dict__)
        whole.height = sum(part.height for part in parts)
        together = parts[0].library.concatenate
        whole.codes = together([part.codes for part in parts], 1)
        whole.scale = together([part.scale for part in parts], 2)
        if whole.minimum is not None:
            whole.minimum = together([part.minimum for part in parts], 2)
            whole.offsets = together([part.offsets for part in parts], 1)
        return whole

    def multiply(self, x: Any, faults: Any, span: tuple[int, int] | None = None) -> Any:
        """Return x [rows, K] times the rows `span` of the weight (all by default)."""
        library, (start, stop) = self.library, span or (0, self.height)
        if not isinstance(x, tuple):
            return self._float_product(x, faults, start, stop)
        check_columns(self.width)
        q, e = x
        columns = self.by_block(library.cast(q, "f64"))
        step = max(1, CELLS // (len(columns) * max(len(q), self.block)))
        cuts = [slice(at, min(at + step, stop)) for at in range(start, stop, step)]
        y = library.concatenate([self._tile(columns, cut) for cut in cuts], 1)
        return library.snap(y * library.exp2_int(e)[:, None], faults)

    def _tile(self, columns: Any, cut: slice) -> Any:
        """Compute RN of each block's integer, scaled, summed in the contract's order: [rows, n]."""
        library = self.library
        codes = library.cast(self.codes[:, cut], "f64")
        terms = library.cast(columns @ codes.swapaxes(1, 2), "f32") * self.scale[..., cut]
        if self.minimum is not None:
            sums = columns.reshape(*columns.shape[:2], -1, self.sub).sum(-1)
            offsets = library.cast(self.offsets[:, cut], "f64")
            lows = library.cast(sums @ offsets.swapaxes(1, 2), "f32")
            terms = terms + lows * self.minimum[..., cut]
        size = min(len(terms), RUN_BLOCKS)
        runs = library.padded(terms, 0, -len(terms) % size, 0)
        return in_order(in_order(runs.reshape(-1, size, *runs.shape[1:]).swapaxes(0, 1)))

    def _float_product(self, x: Any, faults: Any, start: int, stop: int) -> Any:
        """Compute canonical sums of snapped products, one row at a time."""
        library, found = self.library, []
        flags = [library.flags(1) for _ in range(len(x))]
        for row, flag in zip(x, flags, strict=True):
            products = library.snap((row * self.values[start:stop])[None], flag)
            found.append(library.snap(library.canonical_sum(products)[..., 0], flag))
        library.gather_flags(faults, flags)
        return library.concatenate(found)

    def rows(self, ids: Any, faults: Any) -> Any:
        """Return rows of a table: float32 [ids, K]."""
        library = self.library
        if self.floating:
            return library.snap(self.values[ids], faults)
        values = library.cast(self.codes[:, ids], "f32") * self.scale[:, 0][:, ids][..., None]
        if self.minimum is not None:
            offsets = library.cast(self.offsets[:, ids], "f32")
            low = offsets * self.minimum[:, 0][:, ids][..., None]
            values = values + library.repeat(low, self.sub, axis=-1)
        values = values.swapaxes(0, 1).reshape(len(ids), -1)
        return library.snap(values[:, : self.width], faults)


def in_order(terms: Any) -> Any:
    """Return (t0 + t1) + … over the first axis; that it starts at +0 only matters to a −0."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def stacked(matrix: Float64Matrix, count: int, x: Any, choice: Any, faults: Any) -> Any:
    """Return row i, slot j with matrix choice[i, j] of a stack of `count`: float32 [rows, k, n].

    x is [rows, k, K], or [rows, K] when every slot meets the same row; choice is on the host.
    """
    library, height = matrix.library, matrix.height // count
    parts, places = [], []
    for index, rows, slots in _users(choice):
        at, flags = [library.array(part) for part in (rows, slots)], library.flags(len(rows))
        span = (index * height, (index + 1) * height)
        parts.append(matrix.multiply(_picked(x, *at), flags, span))
        places.append(rows * choice.shape[1] + slots)
        found = np.zeros(len(choice), np.bool_)
        found[rows[library.host(flags)]] = True
        library.raise_flags(faults, found)
    back = library.array(np.argsort(np.concatenate(places)).astype(np.int32))
    return library.concatenate(parts)[back].reshape(*choice.shape, height)


def _users(choice: Any) -> Iterator[tuple[int, Any, Any]]:
    """Yield every matrix that is chosen, with the rows and slots that chose it."""
    for index in np.unique(choice):
        rows, slots = np.nonzero(choice == index)
        yield int(index), rows, slots


def _picked(x: Any, rows: Any, slots: Any) -> Any:
    shared = (x[1].ndim if isinstance(x, tuple) else x.ndim - 1) == 1
    if isinstance(x, tuple):
        return type(x)(*(part[rows] if shared else part[rows, slots] for part in x))  # type: ignore[call-arg]
    return x[rows] if shared else x[rows, slots]
