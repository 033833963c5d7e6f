"""The backend object: what it supports, and how a program is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cortiq.backend import CompileOptions, Device, Kernel, Support, TakesKernels, Versions
from cortiq.backend.kernel import HostFunction
from cortiq.backend.support import check_extra, refusal_with, supported_within
from cortiq.ir import Graph, Node, Program
from cortiq.numerics.layouts import Weight
from cortiq_cpu import native
from cortiq_cpu.executable import CpuExecutable
from cortiq_cpu.host_kernel import HostKernel
from cortiq_cpu.native_kernel import NativeKernel
from cortiq_cpu.package import check_native
from cortiq_cpu.supported_ops import refusal

EXTRA_OPTIONS = ("isa", "profile", "poison")


class CpuBackend(TakesKernels):
    """Native kernels on the host's cores: every primitive, and every layer through them.

    The `function` of a package's kernel (`cortiq.backend.Kernel`) is a `cortiq_cpu.NativeKernel`.
    """

    name = "cpu"
    priority = 10
    keeps_weights = True
    versions = Versions()

    def devices(self) -> Sequence[Device]:
        """Return the CPU with its best instruction set; `BackendError` if nothing was built."""
        return [Device("cpu", f"native kernels, {native.best_isa()}")]

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Accept primitives that have a kernel, and layers that decompose into such."""
        return supported_within(node, graph, program, refusal_with(self.given, refusal))

    def check_kernel(self, kernel: Kernel) -> None:
        """Refuse a kernel that is no `NativeKernel`."""
        check_native(kernel)

    def host_kernel(self, function: HostFunction) -> NativeKernel:
        """Return a kernel that hands all rows to a function of Python, which must not raise."""
        return HostKernel(function).native

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> CpuExecutable:
        """Decompose to primitives, pack the weights, and plan each entry graph.

        Raises
        ------
        BackendError : an option in `extra` is unknown, or its instruction set does not run here.
        """
        check_extra("CPU", options, EXTRA_OPTIONS)
        return CpuExecutable(program, weights, options, self.given)
