"""The backend object: its devices, its kernels, and how weights reach a device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from cortiq.backend import CompileOptions, Device, KernelBackend, KernelTable, Versions
from cortiq.backend.float_weights import MATRICES
from cortiq.backend.kernel import TensorFunction
from cortiq.backend.plan import Bound, joined
from cortiq.ir import Graph, Op, ops
from cortiq.numerics.layouts import Weight

if TYPE_CHECKING:
    from cortiq_torch.array_library import TorchArrays


class TorchBackend(KernelBackend):
    """PyTorch, one eager operation after the other."""

    name = "torch"
    versions = Versions(hookspec=1, ir=1, contract=1)

    def devices(self) -> Sequence[Device]:
        """Return the CPU, and CUDA's devices."""
        import torch

        found = [Device("cpu", f"PyTorch {torch.__version__}")]
        for index in range(torch.cuda.device_count()):
            found.append(Device(f"cuda:{index}", torch.cuda.get_device_name(index)))
        return found

    def tensor_kernel(self, function: TensorFunction) -> Any:
        """Return a kernel that calls a function with the tensors of rows."""
        return lambda call, *inputs: function(call.op, *inputs)

    def library(self, device: str, options: CompileOptions) -> TorchArrays:
        """Open torch on a device; BackendError where its arithmetic is not IEEE's."""
        from cortiq_torch.array_library import TorchArrays
        from cortiq_torch.self_test import check_device

        check_device(device)
        return TorchArrays(device)

    def table(self) -> KernelTable:
        """Return the kernels."""
        from cortiq_torch.kernels import TABLE

        return TABLE

    def prepare(self, library: Any, op: Op, role: str, weight: Weight, name: str) -> Any:
        """Convert a weight to the form that the kernel of `op` takes."""
        from cortiq_torch.kernels import prepare

        return prepare(library, op, role, weight, name)

    def form(self, op: Op, role: str) -> Hashable:
        """Return the form's key: a table that is also the last matrix is held once."""
        return "matrix" if isinstance(op, MATRICES) else (op, role)

    def rewrite(self, nodes: list[Bound], graph: Graph) -> list[Bound]:
        """Join the matrices that multiply the same rows."""
        return nodes if ops.MatMul in self.given else joined(nodes)
