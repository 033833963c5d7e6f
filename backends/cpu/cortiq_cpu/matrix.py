"""Matrices in the native core's panels, and the arguments of the ops that read them."""

from __future__ import annotations

import ctypes

import numpy as np

from cortiq.errors import FormatError
from cortiq.numerics.layouts import W16, Weight, floats
from cortiq_cpu.arguments import aligned_zeros
from cortiq_cpu.native import Pool, library

LAYOUTS = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "w8", "w8b256", "w16", "f32",
)  # fmt: skip
"""By the number the native core gives them."""
PRODUCTS = 4
"""Matrices that one MATMUL op takes."""
PANEL = 16


class MatrixStruct(ctypes.Structure):
    """`cortiq_matrix`."""

    _fields_ = (
        *((n, ctypes.c_int32) for n in ("layout", "height", "width", "matrices")),
        *((n, ctypes.c_int32) for n in ("panels", "blocks")),
        *((n, ctypes.c_int64) for n in ("extra_at", "side_at", "panel_bytes")),
        ("data", ctypes.c_void_p),
    )


class Product(ctypes.Structure):
    """`cortiq_product`."""

    _fields_ = (("matrix", ctypes.c_void_p), ("out", ctypes.c_void_p), ("stride", ctypes.c_int64))


class MatMulArgs(ctypes.Structure):
    """`cortiq_matmul_args`."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("inner", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("products", Product * PRODUCTS),
    )


class ChosenArgs(ctypes.Structure):
    """`cortiq_chosen_args`."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("matrix", "x", "choice", "out")),
        ("slots", ctypes.c_int32),
        ("shared", ctypes.c_int32),
    )


class EmbedArgs(ctypes.Structure):
    """`cortiq_embed_args`."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("matrix", "ids", "out"))


class Matrix:
    """A packed matrix, or a stack of them.

    Attributes
    ----------
    address : of the native description.
    nbytes : of the packed data.
    """

    def __init__(self, weight: Weight, name: str, matrices: int, pool: Pool) -> None:
        rows, width = weight.shape
        layout = "f32" if weight.layout.kind == "float" else weight.layout.name
        number = LAYOUTS.index(layout)
        self._struct = MatrixStruct(number, rows // matrices, width, matrices)
        self.nbytes = library().cortiq_matrix_init(ctypes.byref(self._struct))
        self.address = ctypes.addressof(self._struct)
        if layout == "f32":
            self._data = np.ascontiguousarray(floats(weight, name))
        else:
            self._data = aligned_zeros(self.nbytes)
        self._struct.data = self._data.ctypes.data
        if layout != "f32":
            self._pack(weight, name)

    def _pack(self, weight: Weight, name: str) -> None:
        height = self._struct.height
        for index in range(self._struct.matrices):
            part = weight.rows(index * height, (index + 1) * height)
            arrays = [None if a is None else np.ascontiguousarray(a) for a in _arrays(part)]
            places = [None if a is None else a.ctypes.data for a in arrays]
            failed = library().cortiq_matrix_pack(
                self.address, index, 0, self._struct.panels, *places
            )
            if failed:
                raise FormatError(
                    "a scale is infinite, not a number, or 2^50 or more",
                    where=name,
                    hint="The file is damaged or was converted from a diverged model.",
                )


def _arrays(weight: Weight) -> tuple[np.ndarray | None, ...]:
    """Codes or raw blocks, low planes, scales; None for what the layout does not have."""
    parts = weight.parts
    if weight.layout.kind == "blocks":
        return parts["raw"], None, None
    if weight.layout is W16:
        return parts["hi"], parts["lo"], parts["scale"]
    return parts["codes"], None, parts["scale"]
