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
from cortiq_cpu.package_arguments import (
    KERNEL_VERSION,
    KernelRows,
    KernelVector,
    PackageArgs,
    PackageStepArgs,
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
    called: dict[str, Any] = {
        "function": native.address,
        "version": KERNEL_VERSION,
        "input_count": len(inputs),
        "output_count": len(outputs),
        "weight_count": len(weights),
        "inputs": ctypes.addressof(inputs),
        "outputs": ctypes.addressof(outputs),
        "weights": ctypes.addressof(weights),
        "constants": None if constants is None else ctypes.addressof(constants),
    }
    if not native.steps:
        return [(OpKind.PACKAGE, PackageArgs(**called, whole=native.whole))]
    slot = step.nodes[0].slots["state"]
    number, size = b.layout.fixed_numbers[slot], prod(b.layout.recurrences[slot].slot.shape)
    states = {"states": b.rows.fixed[number].ctypes.data, "size": size, "keep": 1}
    states |= {
        "segments": address(b.rows.segments), "segment_count": address(b.rows.segment_count),
    }  # fmt: skip
    return [(OpKind.PACKAGE_STEP, PackageStepArgs(**called, **states))]


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
