"""The backend object: its devices, what it supports, and how a program is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cortiq.backend import (
    CompileOptions,
    Declined,
    Device,
    Support,
    Supported,
    TakesKernels,
    Versions,
)
from cortiq.backend.support import device_named, no_kernel
from cortiq.errors import BackendError
from cortiq.ir import Graph, KVRows, Node, Program, Recurrent, Ring
from cortiq.numerics.layouts import Weight

if TYPE_CHECKING:
    from cortiq_mlx.executable import MlxExecutable

HINT = "pip install mlx; on Linux 'mlx[cpu]' or, with an NVIDIA GPU, 'mlx[cuda]'"


class MlxBackend(TakesKernels):
    """MLX array operations whose results are defined, on the CPU, Metal and CUDA.

    Kernels of others (`cortiq.backend.Kernel`) are called as its own are: `Call`, then the inputs.
    """

    name = "mlx"
    priority = -1
    versions = Versions(hookspec=1, ir=1, contract=1)

    def devices(self) -> Sequence[Device]:
        """The GPU if MLX has one, and the CPU."""
        try:
            from cortiq_mlx.library import DEVICES, description, there
        except ImportError as missing:
            raise BackendError(f"MLX is not here: {missing}", hint=HINT) from missing
        return [Device(name, description(name)) for name in reversed(DEVICES) if there(name)]

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Primitives that have a kernel; layers are decomposed."""
        from cortiq_mlx.attention import WIDEST_KEY
        from cortiq_mlx.kernels import KERNELS, OPTIONS

        kind = type(node.op)
        if not node.op.primitive:
            return Declined("computed as its primitives")
        if kind in self.given:
            return Supported()
        missing = no_kernel(node.op, KERNELS, OPTIONS)
        if missing:
            return Declined(missing)
        slots = [program.slots[name] for name in node.slots.values()]
        unknown = [s for s in slots if not isinstance(s, KVRows | Ring | Recurrent)]
        if unknown:
            return Declined(f"keeps no {type(unknown[0]).__name__} slots")
        wide = [s.key_dim for s in slots if isinstance(s, KVRows) and s.key_dim > WIDEST_KEY]
        if wide:
            return Declined(f"keys of {wide[0]} values: float32 sums are exact up to {WIDEST_KEY}")
        return Supported()

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> MlxExecutable:
        """Look at the device's arithmetic, then bind the program to its weights there.

        Raises
        ------
        BackendError : there is no such device, or its arithmetic is not IEEE's.
        """
        device = device_named(self.name, options, self.devices())
        from cortiq_mlx.executable import MlxExecutable
        from cortiq_mlx.self_test import check_device

        check_device(device)
        return MlxExecutable(program, weights, options, device, self.name, self.given)
