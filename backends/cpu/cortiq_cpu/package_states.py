"""Memory of states that kernels of other packages step through."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod

import numpy as np

from cortiq.backend import Kernel
from cortiq.backend.planes import Floats
from cortiq.ir import Graph, Node, Op, Recurrent
from cortiq_cpu.arguments import SEGMENT, OpKind, address
from cortiq_cpu.native import ThreadPool
from cortiq_cpu.native_kernel import NativeKernel
from cortiq_cpu.package_arguments import KERNEL_VERSION, KernelRows, PackageStepArgs
from cortiq_cpu.recurrent_states import StateMemory


@dataclass(frozen=True)
class PackageState(StateMemory):
    """Memory layout of a state of a package's operator: as the operator says, marks, inputs.

    Attributes
    ----------
    inputs, outputs : values of each input and output in a row.
    """

    op: Op
    native: NativeKernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Values of each input."""
        return self.inputs

    def replay(self, data: Floats, parts: list[Floats], start: int, pool: ThreadPool) -> None:
        """Feed kept rows from a position on to the state."""
        count = len(parts[0])
        outs = [np.empty((count, width), np.float32) for width in self.outputs]
        constants, made = self.native.constants(self.op), []
        for arrays in (parts, outs):
            rows = [KernelRows(address(x), x.shape[1], x.shape[1]) for x in arrays]
            made.append((KernelRows * len(rows))(*rows))
        state = np.array([data.ctypes.data], np.uint64)
        segments, one = np.array([(0, count, start)], SEGMENT), np.ones(1, np.int32)
        args = PackageStepArgs(
            function=self.native.address, version=KERNEL_VERSION, input_count=len(parts),
            output_count=len(outs), inputs=ctypes.addressof(made[0]),
            outputs=ctypes.addressof(made[1]),
            constants=None if constants is None else ctypes.addressof(constants),
            states=address(state), segments=address(segments), segment_count=address(one),
            size=prod(self.slot.shape), keep=0,
        )  # fmt: skip
        self.run(OpKind.PACKAGE_STEP, args, count, pool)


def package_state(node: Node, graph: Graph, kernel: Kernel) -> PackageState:
    """Return the layout of the slot of a package's operator."""
    slot = node.op.slot_kinds()["state"]
    assert isinstance(slot, Recurrent)
    inputs, outputs = (
        tuple(prod(graph.values[name].shape) for name in names)
        for names in (node.inputs, node.outputs)
    )
    return PackageState(slot, node.op, kernel.function, inputs, outputs)
