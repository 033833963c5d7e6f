"""Kernels of other packages: C functions over rows, which include/cortiq_kernel.h describes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

from cortiq.backend import Kernel
from cortiq.backend.admission import BY_ROW
from cortiq.backend.lower import LoweredStep, PackageOp
from cortiq.backend.support import check_package_kernel
from cortiq_cpu.arguments import OpKind, address
from cortiq_cpu.binder import OpArgs, OpBinder
from cortiq_cpu.native_kernel import NativeKernel

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


def check_native(kernel: Kernel) -> None:
    """Refuse a kernel that is no `NativeKernel`, or is for an operator that takes none.

    Raises
    ------
    BackendError : which it is.
    """
    check_package_kernel(kernel, NativeKernel, "cpu")
    _ = kernel.function.address


def bind_package(b: OpBinder, step: LoweredStep) -> OpArgs:
    """Call a package's kernel on the rows of a set."""
    packaged: PackageOp = step.op
    native: NativeKernel = packaged.kernel.function
    constants, weights = native.constants(packaged.op), _weights(b, step)
    inputs, outputs = _rows(b, step.inputs), _rows(b, step.outputs)
    b.kept += [constants, weights, inputs, outputs]
    args = PackageArgs(
        function=native.address,
        version=KERNEL_VERSION,
        input_count=len(inputs),
        output_count=len(outputs),
        weight_count=len(weights),
        inputs=ctypes.addressof(inputs),
        outputs=ctypes.addressof(outputs),
        weights=ctypes.addressof(weights),
        constants=None if constants is None else ctypes.addressof(constants),
        whole=native.whole,
    )
    return [(OpKind.PACKAGE, args)]


def _rows(b: OpBinder, names: Sequence[str]) -> ctypes.Array[KernelRows]:
    rows = [KernelRows(_address(b, name), b.stride(name), b.stride(name)) for name in names]
    return (KernelRows * len(rows))(*rows)


def _address(b: OpBinder, name: str) -> Any:
    """Return where a value's rows are; those that the host knows lie apart."""
    if name in BY_ROW:
        return address(b.rows.tokens if name == "token" else b.rows.positions)
    return b.at(name)


def _weights(b: OpBinder, step: LoweredStep) -> ctypes.Array[KernelVector]:
    node = step.nodes[0]
    shapes: dict[str, tuple[int, ...]] = node.op.weight_shapes()
    found = [
        KernelVector(b.vector(node, role), prod(shape) if role in node.weights else 0)
        for role, shape in shapes.items()
    ]
    return (KernelVector * len(found))(*found)
