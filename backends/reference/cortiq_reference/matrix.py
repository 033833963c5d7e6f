"""Matrix products over a weight's own codes, in tiles: the bits of `numerics.matmul`, faster.

The integer sums are taken by float matrix products of integers that stay exact: in float32 where
every partial sum is below 2²⁴, else in float64. Everything that rounds is in the written order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, RUN_BLOCKS, Flags, Floats, Ints, exp2_int, snap
from cortiq.numerics.layouts import Weight, decode, floats, unpack
from cortiq.numerics.matmul import check_columns, matmul_f32
from cortiq.numerics.quantise import Quantised
from cortiq.numerics.unpacked_weights import Codes, UnpackedWeight

EXACT_F32 = 2**24
MAX_Q = 32512
TILE_ELEMENTS = 1 << 19
"""Elements of a weight tile at most: fewer would leave Python's own work undivided by two threads,
which hold each other up there; more would fall out of the cache."""
SHARE = 1 << 22
"""Multiplications that are worth a tile of their own, up to `SHARES` tiles."""
SHARES = 4
TERM_ELEMENTS = 1 << 17
"""Products of blocks and rows that are scaled and summed at a time: they stay in that cache too."""
TILE_ROWS = 64
"""Activation rows that meet a weight tile at a time."""

Rows = Quantised | Floats
Pool = ThreadPoolExecutor | None
Span = tuple[int, int]


class TiledMatrix:
    """A weight [N, K], or rows of one, ready to be multiplied with rows.

    Parameters
    ----------
    rows : which of the weight, all if None: one expert or head of a stack. They are made when they
        are needed, since a stack's may be more than fits.
    """

    def __init__(self, weight: Weight, name: str, pool: Pool, rows: range | None = None) -> None:
        self.weight, self.name, self.pool = weight, name, pool
        self.rows = range(weight.shape[0]) if rows is None else rows
        check_columns(weight.shape[1])

    def _of_weight(self, start: int, stop: int) -> Weight:
        return self.weight.rows(self.rows.start + start, self.rows.start + stop)

    def multiply(self, x: Rows, faults: Flags) -> Floats:
        """Multiply x [rows, K] with the weight: float32 [rows, N]."""
        if not isinstance(x, Quantised):
            return self._multiply_floats(x, faults)
        out = np.empty((len(x.q), len(self.rows)), F32)
        rows = [
            Quantised(x.q[r : r + TILE_ROWS], x.e[r : r + TILE_ROWS])
            for r in range(0, len(x.q), TILE_ROWS)
        ]
        columns = [_Columns(row) for row in rows]

        def tile(start: int, stop: int) -> None:
            prepared = _Tile(self._of_weight(start, stop), self.name)
            for index, column in enumerate(columns):
                first = index * TILE_ROWS
                prepared.multiply(column, out[first : first + len(column.q), start:stop])

        self._each(tile, self._spans(len(x.q)))
        return snap(out * exp2_int(x.e)[:, None], faults)

    def _each(self, work: Callable[[int, int], None], spans: list[Span]) -> None:
        if self.pool is None or len(spans) == 1:
            for span in spans:
                work(*span)
        else:
            list(self.pool.map(lambda span: work(*span), spans))

    def _spans(self, rows: int) -> list[Span]:
        """Return tiles of about equal height, for this many activation rows."""
        height, width = len(self.rows), self.weight.shape[1]
        size = height * width
        shares = min(SHARES, rows * size // SHARE) if self.pool is not None else 1
        step = -(-height // max(shares, -(-size // TILE_ELEMENTS), 1))
        return [(start, min(start + step, height)) for start in range(0, height, step)]

    def _multiply_floats(self, x: Floats, faults: Flags) -> Floats:
        parts = []
        for start, stop in self._spans(len(x)):
            parts.append(matmul_f32(x, floats(self._of_weight(start, stop), self.name), faults))
        return np.concatenate(parts, axis=1)


class _Columns:
    """Quantised rows as the columns of block products: [blocks, block, rows]."""

    def __init__(self, x: Quantised) -> None:
        self.q = x.q
        self._cache: dict[tuple[int, type], npt.NDArray] = {}

    def blocks(self, block: int, dtype: type) -> npt.NDArray:
        """Return q in blocks of this length, the last one padded with zeros, as this float type."""
        key = (block, dtype)
        if key not in self._cache:
            q = np.pad(self.q, ((0, 0), (0, -self.q.shape[1] % block)))
            split = q.reshape(len(q), -1, block).transpose(1, 2, 0)
            self._cache[key] = np.ascontiguousarray(split, dtype)
        return self._cache[key]

    def sums(self, sub: int, block: int) -> npt.NDArray:
        """Return Σq of each sub-block: float64 [blocks, block/sub, rows], exact."""
        key = (-sub, np.float64)
        if key not in self._cache:
            rows, width = self.q.shape
            total = self.q.reshape(rows, width // block, block // sub, sub).sum(-1, dtype=np.int64)
            self._cache[key] = np.ascontiguousarray(total.transpose(1, 2, 0), np.float64)
        return self._cache[key]


class _Scratch(threading.local):
    """Arrays of a thread that every tile uses again: fresh ones would be paged in each time."""

    def __init__(self) -> None:
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}

    def array(self, role: str, shape: tuple[int, ...], dtype: type) -> npt.NDArray:
        """Return an array of undefined content, valid until the thread asks for this role again."""
        size = prod(shape) * np.dtype(dtype).itemsize
        memory = self._memory.get(role)
        if memory is None or memory.size < size:
            memory = self._memory[role] = np.empty(size, np.uint8)
        return memory[:size].view(dtype).reshape(shape)


_SCRATCH = _Scratch()


class _Tile:
    """Some rows of a weight, unpacked to floats that hold its integers.

    It lies in the thread's scratch memory: one tile of a thread lives at a time.
    """

    def __init__(self, weight: Weight, name: str) -> None:
        fields = unpack(weight, name)
        codes: UnpackedWeight | Codes = (
            fields if fields.sub_scales is None else decode(weight, name)
        )
        rows, width = weight.shape
        self.block = min(codes.block, width)
        low, high = int(codes.codes.min(initial=0)), int(codes.codes.max(initial=0))
        exact = max(high, -low) * MAX_Q * self.block < EXACT_F32
        self.dtype = np.float32 if exact else np.float64
        blocks = -(-width // self.block)
        floating = _SCRATCH.array("codes", (rows, blocks * self.block), self.dtype)
        floating[:, :width], floating[:, width:] = codes.codes, 0
        self.codes = floating.reshape(rows, blocks, self.block).transpose(1, 0, 2)
        self.scale = np.ascontiguousarray(codes.scale.T)[:, :, None]
        self.minimum = self.offsets = None
        if codes.minimum is not None:
            self.minimum = np.ascontiguousarray(codes.minimum.T)[:, :, None]
            self.sub = codes.sub or self.block
            self.offsets = _offsets(codes, rows, blocks)

    def multiply(self, x: _Columns, out: Floats) -> None:
        """Write Σ over runs of Σ over blocks, before the row's exponent, to out [rows, N]."""
        blocks, height, _ = self.codes.shape
        total = _SCRATCH.array("total", (height, len(x.q)), F32)
        total[:] = 0
        step = RUN_BLOCKS * max(1, TERM_ELEMENTS // (RUN_BLOCKS * total.size))
        for start in range(0, blocks, step):
            terms = self._terms(x, slice(start, start + step))
            for run in range(0, len(terms), RUN_BLOCKS):
                total += _ordered_sum(terms[run : run + RUN_BLOCKS])
        out[:] = total.T

    def _terms(self, x: _Columns, cut: slice) -> Floats:
        """Compute RN(RN(I)·scale) [+ RN(RN(J)·minimum)] of blocks: float32 [blocks, N, rows]."""
        codes, columns = self.codes[cut], x.blocks(self.block, self.dtype)[cut]
        shape = (len(codes), codes.shape[1], columns.shape[2])
        dots = np.matmul(codes, columns, out=_SCRATCH.array("dots", shape, self.dtype))
        terms = dots.astype(F32, copy=False)
        terms *= self.scale[cut]
        if self.minimum is not None:
            terms += self._lows(x, self.minimum[cut], cut, _SCRATCH.array("lows", shape, F32))
        return terms

    def _lows(self, x: _Columns, minimum: Floats, cut: slice, out: Floats) -> Floats:
        sums = x.sums(self.sub, self.block)[cut]
        if self.offsets is not None:
            sums = np.matmul(self.offsets[cut], sums)
        return np.multiply(sums.astype(F32), minimum, out=out)


def _offsets(codes: UnpackedWeight | Codes, rows: int, blocks: int) -> npt.NDArray | None:
    """Return integer factors of the minima, float64 [blocks, N, subs]; `None` where all are 1."""
    if codes.offsets is None:
        return None
    split = codes.offsets.reshape(rows, blocks, -1).transpose(1, 0, 2)
    return np.ascontiguousarray(split, np.float64)


def _ordered_sum(terms: Floats) -> Floats:
    """Add up (t0 + t1) + … over the first axis, in place; the caller's +0 absorbs a −0."""
    total = terms[0]
    for term in terms[1:]:
        total += term
    return total


class MatrixStack:
    """A stack of n weights [N, K], of which every row meets some: experts, or one a head."""

    def __init__(self, weight: Weight, count: int, name: str, pool: Pool) -> None:
        height = weight.shape[0] // count
        rows = [range(i * height, (i + 1) * height) for i in range(count)]
        self.parts = [TiledMatrix(weight, name, pool, part) for part in rows]
        self.height = height

    def multiply(self, x: Rows, choice: Ints, faults: Flags) -> Floats:
        """Multiply row i, slot j with matrix choice[i, j]: float32 [rows, k, N].

        Parameters
        ----------
        x : rows [rows, k, K], or [rows, K] when every slot meets the same row.
        choice : int32 [rows, k].
        """
        out = np.zeros((*choice.shape, self.height), F32)
        shared = (x.e.ndim if isinstance(x, Quantised) else x.ndim - 1) == 1
        for index in np.unique(choice):
            where = np.nonzero(choice == index)
            picked = _take(x, where[0] if shared else where)
            flags = np.zeros(len(where[0]), np.bool_)
            out[where] = self.parts[index].multiply(picked, flags)
            np.logical_or.at(faults, where[0], flags)
        return out


def _take(x: Rows, where: tuple | npt.NDArray) -> Rows:
    if isinstance(x, Quantised):
        return Quantised(x.q[where], x.e[where])
    return x[where]
