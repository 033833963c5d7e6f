"""Weights repacked once, from their own codes, into the panels that the kernels read.

A panel holds 16 outputs; codes keep their width (4-bit codes stay nibbles, 5 and 6 bits too), and
scales their f16, so that a packed matrix takes about the bytes it has in the file
(`native/layouts.h` says how it lies).
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from math import prod
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cortiq.numerics.layouts import Weight, floats, unpack
from cortiq.numerics.matmul import check_columns
from cortiq_cpu.huge_pages import SLABS
from cortiq_cpu.matmul_arguments import LAYOUT_NAMES, MatrixArgs
from cortiq_cpu.native import library, library_hash
from cortiq_cpu.release_pages import release_pages
from cortiq_cpu.repacking import native_layout, native_parts

PANEL = 16
"""Outputs of a panel."""
ALIGNMENT = 64
SLICE_BYTES = 1 << 22
"""Packed bytes of a piece of work."""
AHEAD = 4
"""Pieces that threads pack before they are taken."""

Piece = TypeVar("Piece")
Result = TypeVar("Result")


@cache
def packing_hash() -> str:
    """Return a hash of all code that packs a matrix: the library and these files."""
    files = [Path(__file__).with_name(f"{name}.py") for name in ("packing", "repacking", "weights")]
    digest = hashlib.sha256(library_hash().encode())
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Allocate a uint8 array of so many bytes at a multiple of 64."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def aligned_floats(*shape: int) -> npt.NDArray[np.float32]:
    """Allocate a float32 array at a multiple of 64 bytes, not initialised."""
    return aligned(4 * prod(shape)).view(np.float32).reshape(shape)


def _contiguous(array: npt.NDArray | None, dtype: type | None = None) -> npt.NDArray | None:
    return None if array is None else np.ascontiguousarray(array, dtype)


class PackedMatrix:
    """Matrices [matrices, N, K] of a weight [matrices·N, K], in panels.

    Attributes
    ----------
    address : of the native `cortiq_matrix`, for ops; valid as long as this object lives.
    height, width, matrices : N, K and how many.
    nbytes : bytes of the packed form. form : what they mean: this library's, layout and shape.
    """

    def __init__(
        self, weight: Weight, name: str, matrices: int = 1, pool: ThreadPoolExecutor | None = None
    ) -> None:
        """Pack `weight`, on the threads of `pool` if there is one.

        Raises
        ------
        FormatError : a scale or value is not finite, or is 2⁵⁰ or more; it names the tensor.
        UnsupportedError : more than 32768 columns in codes.
        """
        self._describe(weight, matrices)
        self.pack(weight, name, pool)

    @classmethod
    def unpacked(cls, weight: Weight, matrices: int = 1) -> PackedMatrix:
        """Return a matrix for a weight of this shape and layout, whose bytes are still to come."""
        made = cls.__new__(cls)
        made._describe(weight, matrices)
        return made

    def _describe(self, weight: Weight, matrices: int) -> None:
        layout = native_layout(weight)
        self.matrices, self.width = matrices, weight.shape[1]
        self.height = weight.shape[0] // matrices
        self._struct = MatrixArgs(LAYOUT_NAMES.index(layout), self.height, self.width, matrices)
        self.address = ctypes.addressof(self._struct)
        if layout != "f32":
            check_columns(self.width)
        self.nbytes = library().cortiq_matrix_init(self.address)
        self._views: list[PackedMatrix] = []
        rows = f"{matrices}x{self.height}x{self.width}"
        self.form = f"cpu {packing_hash()} {weight.layout.name} {rows}"

    def pack(self, weight: Weight, name: str, pool: ThreadPoolExecutor | None = None) -> None:
        """Pack the weight's codes or floats into memory; errors as of the constructor."""
        together, done = SLABS.take(self.nbytes), 0
        data = aligned(self.nbytes) if together is None else together
        for part in self.parts(weight, name, pool, data):
            if part.base is not data.base:
                data[done : done + part.nbytes] = part
            done += part.nbytes
        self.place(data)

    def place(self, data: npt.NDArray[np.uint8]) -> None:
        """Say where the packed bytes are: at a multiple of 64."""
        self.data = data
        for matrix in (self, *self._views):
            matrix._struct.data = data.ctypes.data

    def parts(
        self,
        weight: Weight,
        name: str,
        pool: ThreadPoolExecutor | None = None,
        data: npt.NDArray[np.uint8] | None = None,
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the packed bytes in order, part by part; errors as of the constructor.

        Parameters
        ----------
        data : where they all go; None for arrays of their own.
        """
        if native_layout(weight) == "f32":
            rows = max(1, SLICE_BYTES // (4 * self.width))
            for start in range(0, weight.shape[0], rows):
                stop = min(start + rows, weight.shape[0])
                yield floats(weight.rows(start, stop), name).view(np.uint8).reshape(-1)
            return
        step = max(1, SLICE_BYTES // self._struct.panel_bytes)
        pieces = [
            (matrix, first, min(step, self._struct.panels - first))
            for matrix in range(self.matrices)
            for first in range(0, self._struct.panels, step)
        ]

        def pack(piece: tuple[int, int, int]) -> tuple[npt.NDArray[np.uint8], int]:
            return self._pack_panels(weight, name, data, *piece)

        failed = 0
        for part, failure in in_order(pack, pieces, pool):
            failed |= failure
            yield part
        if failed:
            self._explain(weight, name)

    def changes(self) -> npt.NDArray[np.uint8]:
        """Return for each matrix in w16 if it is not zero: panels start with scales."""
        panels = self.data[: self.nbytes].reshape(self.matrices, -1, self._struct.panel_bytes)
        scales = panels[..., : 4 * PANEL].view(np.float32)
        return np.any(scales != 0, axis=(1, 2)).astype(np.uint8)

    def takes(self, number: int, rows: Weight) -> bool:
        """Check whether rows number·n … of the weight, all n of them, can be packed alone: whole
        matrices of a stack, or whole panels.
        """
        count = rows.shape[0]
        panels = native_layout(rows) == "f32" or count % PANEL == 0
        whole = count % self.height == 0 or (panels and self.matrices == 1)
        return whole and (number + 1) * count <= self.matrices * self.height

    def revise(self, number: int, rows: Weight, name: str) -> None:
        """Pack them in their place; errors as of the constructor."""
        several = rows.shape[0] // self.height
        if several > 1:
            for i in range(several):
                one = rows.rows(i * self.height, (i + 1) * self.height)
                self.revise(number * several + i, one, name)
            return
        part = PackedMatrix(rows, name).data
        size = 4 * self.width * rows.shape[0]
        if native_layout(rows) != "f32":
            size = -(-rows.shape[0] // PANEL) * self._struct.panel_bytes
        self.data[number * size : (number + 1) * size] = part[:size]

    def first_rows(self, count: int) -> PackedMatrix:
        """Return the first rows, whole panels, as a matrix over the same bytes."""
        view = copy.copy(self)
        view.height = count
        view._struct = MatrixArgs(self._struct.layout, count, self.width, 1)
        view.address = ctypes.addressof(view._struct)
        view.nbytes = library().cortiq_matrix_init(view.address)
        view._struct.data = self._struct.data
        self._views.append(view)
        return view

    def _pack_panels(
        self,
        weight: Weight,
        name: str,
        data: npt.NDArray[np.uint8] | None,
        matrix: int,
        first: int,
        count: int,
    ) -> tuple[npt.NDArray[np.uint8], int]:
        """Pack some panels of one matrix: their bytes, and nonzero if a scale is not canonical."""
        start, stop = first * PANEL, min((first + count) * PANEL, self.height)
        before, size = matrix * self.height, self._struct.panel_bytes
        at, nbytes = (matrix * self._struct.panels + first) * size, count * size
        target = aligned(nbytes) if data is None else data[at : at + nbytes]
        # The kernel counts panels and rows from the matrix's first, which these arrays do not hold.
        packed = MatrixArgs.from_buffer_copy(self._struct)
        packed.data = target.ctypes.data - at
        part = native_parts(weight.rows(before + start, before + stop), name)
        codes = next(part[key] for key in ("raw", "codes", "hi") if key in part)
        given = [_contiguous(codes), _contiguous(part.get("lo"))]
        given.append(_contiguous(part.get("scale"), np.float32))
        pointers = [
            None if array is None else array.ctypes.data - start * array.strides[0]
            for array in given
        ]
        failed = library().cortiq_matrix_pack(
            ctypes.addressof(packed), matrix, first, count, *pointers
        )
        for array in part.values():
            release_pages(array)
        return target, failed

    def _explain(self, weight: Weight, name: str) -> None:
        """Raise what the contract's own check says is wrong."""
        rows = max(1, SLICE_BYTES // self.width)
        for start in range(0, weight.shape[0], rows):
            unpack(weight.rows(start, min(start + rows, weight.shape[0])), name)
        raise AssertionError(f"{name}: the kernels refused scales that the contract accepts")


def in_order(
    work: Callable[[Piece], Result], pieces: Iterable[Piece], pool: ThreadPoolExecutor | None
) -> Iterator[Result]:
    """Yield the results of all pieces in order; threads are at most `AHEAD` pieces ahead."""
    if pool is None:
        yield from map(work, pieces)
        return
    ahead: deque[Future[Result]] = deque()
    for piece in pieces:
        ahead.append(pool.submit(work, piece))
        if len(ahead) > AHEAD:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()
