"""Structs that kernels of other packages are called with: include/cortiq_kernel.h, args.h."""

from __future__ import annotations

import ctypes

KERNEL_VERSION = 1
"""CORTIQ_KERNEL_VERSION of the header."""


class KernelRows(ctypes.Structure):
    """`cortiq_kernel_rows`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


class KernelVector(ctypes.Structure):
    """`cortiq_kernel_vector`."""

    _fields_ = (("data", ctypes.c_void_p), ("count", ctypes.c_int64))


class PackageArgs(ctypes.Structure):
    """`cortiq_package`: the function, the `cortiq_kernel_call`, and whether it is called once."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("version", ctypes.c_int32),
        ("input_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("weight_count", ctypes.c_int32),
        ("inputs", ctypes.c_void_p),
        ("outputs", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("whole", ctypes.c_int32),
    )


class PackageStepArgs(ctypes.Structure):
    """`cortiq_package_step`: as `PackageArgs`, with the states of sequences."""

    _fields_ = (
        *PackageArgs._fields_[:-1],
        ("states", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
        ("segment_count", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("keep", ctypes.c_int32),
    )
