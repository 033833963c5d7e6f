"""The backend object: its devices, what it supports, and how a program is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cortiq.backend import CompileOptions, Device, Kernel, Support, TakesKernels, Versions
from cortiq.backend.support import (
    check_extra,
    no_kernel,
    refusal_with,
    supported_within,
    unplaced,
)
from cortiq.ir import Graph, Node, Program, ops
from cortiq.numerics import scalar
from cortiq.numerics.layouts import Weight

if TYPE_CHECKING:
    from cortiq_wgpu.executable import WgpuExecutable

EXTRA_OPTIONS = ("binding_bytes", "gpu_kernels", "portable_dot", "poison", "progress", "tuning")
OPTIONS = frozenset({
    *scalar.ACTIVATIONS, "groups", "mask", "tau", "missing", "step", "sections", "blocks",
    "keys only", "until", "mass", "every", "slopes", "sqrt_softplus", "sparse_mixer",
})  # fmt: skip
"""What the kernels know beyond the plain form of an operator."""
KERNELS = tuple(kind for kind in ops.PRIMITIVES if kind is not ops.DiagonalDeltaRule)
"""Primitives with a kernel."""
MOST_CHOSEN, MOST_GROUPS = 32, 1024


def refusal(node: Node, graph: Graph, program: Program) -> str:
    """Return the reason why a primitive is declined; empty if it is not."""
    op = node.op
    if isinstance(op, ops.Route) and op.router.tau is not None and op.router.top_k > MOST_CHOSEN:
        return f"no kernel for tau with more than {MOST_CHOSEN} experts chosen"
    if isinstance(op, ops.Route) and op.router.groups > MOST_GROUPS:
        return f"no kernel for more than {MOST_GROUPS} groups of experts"
    return no_kernel(op, KERNELS, OPTIONS) or unplaced(node, graph, program)


class WgpuBackend(TakesKernels):
    """WGSL kernels on whatever wgpu finds: primitives, and layers through them.

    The `function` of a package's kernel (`cortiq.backend.Kernel`) is a `cortiq_wgpu.RowShader`.
    """

    name = "wgpu"
    priority = -1
    versions = Versions()

    def devices(self) -> Sequence[Device]:
        """List the adapters; `BackendError` says why there are none."""
        from cortiq_wgpu.adapters import devices

        return devices()

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Accept primitives that have a kernel, and layers that decompose into such."""
        return supported_within(node, graph, program, refusal_with(self.given, refusal))

    def check_kernel(self, kernel: Kernel) -> None:
        """Refuse a kernel that is no `RowShader`."""
        from cortiq_wgpu.package import check_shader

        check_shader(kernel)

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> WgpuExecutable:
        """Open the device, test its arithmetic, and upload the weights.

        Raises
        ------
        BackendError : an option in `extra` is unknown, there is no such device, or it computes
            other bits than the contract has.
        """
        from cortiq_wgpu.executable import WgpuExecutable

        check_extra(self.name, options, EXTRA_OPTIONS)
        return WgpuExecutable(program, weights, options, self.given)
