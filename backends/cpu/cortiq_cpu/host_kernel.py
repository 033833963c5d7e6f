"""Kernels in Python: a C function that hands all rows of a batch to a function over arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend.kernel import HostFunction
from cortiq.ir import Op
from cortiq_cpu.native_kernel import NativeKernel
from cortiq_cpu.package_arguments import KernelRows, PackageArgs

FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)
"""`cortiq_kernel_function`."""
CALL_OFFSET: int = PackageArgs.version.offset
"""Offset in bytes of `cortiq_kernel_call` in `cortiq_package`."""


class OpNumber(ctypes.Structure):
    """Constants of a call: the number of its operator."""

    _fields_ = (("number", ctypes.c_int64),)


class HostKernel:
    """A function of Python for operators of one class; see `TakesKernels.host_kernel`."""

    def __init__(self, function: HostFunction) -> None:
        self._function, self._ops = function, list[Op]()
        self.native = NativeKernel(FUNCTION(self._called), self._constants, whole=True)

    def _constants(self, op: Op) -> ctypes.Structure:
        self._ops.append(op)
        return OpNumber(len(self._ops) - 1)

    def _called(self, address: int, faults: int, start: int, stop: int) -> None:
        call = PackageArgs.from_address(address - CALL_OFFSET)
        op: Any = self._ops[OpNumber.from_address(call.constants).number]
        inputs = [_array(rows, stop) for rows in _rows(call.inputs, call.input_count)]
        (output,) = _rows(call.outputs, call.output_count)
        made = np.ascontiguousarray(self._function(op, *inputs)).reshape(stop, -1)
        _array(output, stop)[:] = made.view(np.float32)


def _rows(address: int, count: int) -> ctypes.Array[KernelRows]:
    return (KernelRows * count).from_address(address)


def _array(rows: KernelRows, count: int) -> npt.NDArray[np.float32]:
    """Return rows that lie one after the other, as float32 [count, values of a row]."""
    block = (ctypes.c_float * (count * rows.count)).from_address(rows.data)
    return np.frombuffer(block, np.float32).reshape(count, rows.count)
