"""The structs of the native core's matrix ops, as ctypes sees them (`native/layouts.h`,
`native/matmul.h`).
"""

from __future__ import annotations

import ctypes

LAYOUT_NAMES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("i4b32", "i4b32m", "i8b32", "i8b32m", "e2m1b16", "e4m3b32"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "w8", "w8b256", "w16", "f32"),
)
"""Layouts by the number the native core gives them."""

PRODUCTS = 4
"""Matrices that one matmul op multiplies the same rows with, at most."""

NOTHING, EMBED_ROWS, QUANTISE, MATMUL, MATMUL_CHOSEN = 0, 1, 2, 3, 4
PROBE_FLOATS, PROBE_READ, PROBE_DOTS = 61, 62, 63
"""Kinds of ops (`cortiq_kind`)."""


class CMatrix(ctypes.Structure):
    """`cortiq_matrix`."""

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


class Product(ctypes.Structure):
    """`cortiq_product`: a matrix, where its outputs go, and floats from row to row."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
    )


class MatmulArgs(ctypes.Structure):
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
        ("matrix", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("choice", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("slots", ctypes.c_int32),
        ("shared", ctypes.c_int32),
    )


class EmbedArgs(ctypes.Structure):
    """`cortiq_embed_args`."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


class ProbeArgs(ctypes.Structure):
    """`cortiq_probe_args`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("multiplies", ctypes.c_int64),
        ("result", ctypes.c_int64),
    )
