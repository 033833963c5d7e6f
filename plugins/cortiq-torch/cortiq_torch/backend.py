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
from cortiq.errors import BackendError
from cortiq.ir import Graph, KVRows, Node, Program, Recurrent, Ring
from cortiq.numerics.layouts import Weight

if TYPE_CHECKING:
    from cortiq_torch.executable import TorchExecutable


class TorchBackend(TakesKernels):
    """PyTorch, one eager operation after the other.

    Kernels of others (`cortiq.backend.Kernel`) are called as its own are: `Call`, then the inputs.
    """

    name = "torch"
    priority = -1
    versions = Versions(hookspec=1, ir=1, contract=1)

    def devices(self) -> Sequence[Device]:
        """The CPU, and CUDA's devices."""
        import torch

        found = [Device("cpu", f"PyTorch {torch.__version__}")]
        for index in range(torch.cuda.device_count()):
            found.append(Device(f"cuda:{index}", torch.cuda.get_device_name(index)))
        return found

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Primitives that have a kernel, and one layer; other layers are decomposed."""
        from cortiq_torch.kernels import KERNELS, LAYERS, OPTIONS

        kind = type(node.op)
        if not node.op.primitive:
            whole = (
                kind in LAYERS
                and not self.given
                and getattr(node.op, "activation", None) in OPTIONS
            )
            return Supported() if whole else Declined("computed as its primitives")
        if kind in self.given:
            return Supported()
        if kind not in KERNELS:
            return Declined(f"no kernel for {node.op.kind}")
        missing = sorted(node.op.options() - OPTIONS)
        if missing:
            return Declined(f"no kernel for {node.op.kind} with {', '.join(missing)}")
        slots = [type(program.slots[name]) for name in node.slots.values()]
        unknown = [slot.__name__ for slot in slots if slot not in (KVRows, Ring, Recurrent)]
        return Declined(f"keeps no {unknown[0]} slots") if unknown else Supported()

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> TorchExecutable:
        """Look at the device's arithmetic, then bind the program to its weights there.

        Raises
        ------
        BackendError : there is no such device, or its arithmetic is not IEEE's.
        """
        from cortiq_torch.executable import TorchExecutable
        from cortiq_torch.gate import check_device

        device = options.device or "cpu"
        if device not in [found.name for found in self.devices()]:
            raise BackendError(f"torch has no device {device!r}")
        check_device(device)
        return TorchExecutable(program, weights, options, device, self.name, self.given)
