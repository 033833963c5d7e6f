"""Arguments of the native matrix ops: structs of `native/layouts.h` and
`native/matmul.h`, as ctypes structures.
"""

from __future__ import annotations

import ctypes

LAYOUT_NAMES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("i4b32", "i4b32m", "i8b32", "i8b32m", "e2m1b16", "e4m3b32", "nf4b32", "fp4b32"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "IQ4_XS", "Q6_K", "k8", "w8", "w8b256", "w16", "f32"),
)
"""Layouts by the number the native core gives them; `k8` is the kernels' own (`repacking`)."""

PRODUCTS = 4
"""Matrices that one matmul op multiplies the same rows with, at most."""

PROBE_FLOATS, PROBE_READ, PROBE_DOTS = 61, 62, 63
"""Kinds of the ops that measure rates (`cortiq_kind`)."""


class MatrixArgs(ctypes.Structure):
    """`cortiq_matrix`: a packed matrix or stack."""

    _fields_ = (
        ("layout", ctypes.c_int32),
        ("height", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("matrices", ctypes.c_int32),
        ("panels", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("panel_bytes", ctypes.c_int64),
        ("data", ctypes.c_void_p),
    )


class MatmulOperand(ctypes.Structure):
    """`cortiq_product`: a matrix, the address of its outputs, and floats from row to row."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
    )


class MatmulArgs(ctypes.Structure):
    """`cortiq_matmul_args`: MATMUL."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("inner", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("products", MatmulOperand * PRODUCTS),
    )


class ChosenMatmulArgs(ctypes.Structure):
    """`cortiq_chosen_args`: MATMUL_CHOSEN."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("choice", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("slots", ctypes.c_int32),
        ("shared", ctypes.c_int32),
    )


class LowRankPartArgs(ctypes.Structure):
    """`cortiq_low_rank_part`: two stacks of a weight, and products that theirs are added to."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("changes", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


class LowRankArgs(ctypes.Structure):
    """`cortiq_low_rank_args`: LOW_RANK."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("choice", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("count", ctypes.c_int32),
        ("parts", LowRankPartArgs * PRODUCTS),
    )


class EmbedArgs(ctypes.Structure):
    """`cortiq_embed_args`: EMBED_ROWS."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("inner", ctypes.c_int64),
    )


class RateProbeArgs(ctypes.Structure):
    """`cortiq_probe_args`: measurements of the machine's rates."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("multiplies", ctypes.c_int64),
        ("result", ctypes.c_int64),
    )
