"""The backend object: its devices, what it supports, and how a program is compiled."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cortiq.backend import (
    CompileOptions,
    Declined,
    Device,
    Kernel,
    Support,
    Supported,
    TakesKernels,
    Versions,
)
from cortiq.backend.kernel import TableFunction, TensorFunction
from cortiq.backend.support import device_named, no_kernel, package_refusal
from cortiq.errors import BackendError, DeviceMemoryError
from cortiq.ir import Graph, Node, Program, ops
from cortiq.numerics.layouts import Weight

if TYPE_CHECKING:
    from cortiq_triton.executable import TritonExecutable
    from cortiq_triton.peer_rows import RowExchange

OLDEST = (8, 0)
"""Compute capability from which on int8 tensor cores are what the kernels expect."""
INTERPRETER = "cpu"
NO_GPU_HINT = "TRITON_INTERPRET=1 runs the kernels without one."
NO_DEVICE = 100
"""Result of `cuInit` without a device (CUDA_ERROR_NO_DEVICE)."""


MATRICES = (ops.EmbedRows, ops.MatMul, ops.HeadMatMul, ops.ExpertMatMul)


class TritonBackend(TakesKernels):
    """Kernels in Triton on NVIDIA GPUs, or in Triton's interpreter where TRITON_INTERPRET=1.

    The `function` of a package's kernel (`cortiq.backend.Kernel`) is called as the backend's own
    are: `cortiq_triton.call.LaunchCall`, then tensors. It launches and does nothing else, since
    steps of decoding are captured: what it did on the host would not be done again.
    """

    name = "triton"
    versions = Versions(hookspec=1, ir=1, contract=1)

    def __init__(self) -> None:
        # Nobody is to be given the interpreter without asking for it.
        self.priority = -1 if interpreter_asked_for() else 20

    def devices(self) -> Sequence[Device]:
        """CUDA's devices, or the interpreter.

        Raises
        ------
        BackendError : why there is neither.
        """
        for needed in ("torch", "triton"):
            if importlib.util.find_spec(needed) is None:
                raise BackendError(f"{needed} is not installed", hint=f"pip install {needed}")
        if interpreter_asked_for():
            return [_interpreter()]
        if "cortiq_triton.language" in sys.modules and _made_for_the_interpreter():
            raise BackendError("TRITON_INTERPRET was unset after the kernels were made for it")
        return gpus()

    def supports(self, node: Node, graph: Graph, program: Program) -> Support:
        """Primitives; layers are decomposed."""
        if not node.op.primitive:
            return Declined("computed as its primitives")
        given = self.given.get(type(node.op))
        if given is not None:
            refused = package_refusal(node, graph, given)
            return Declined(refused) if refused else Supported()
        from cortiq_triton.kernels import KERNELS, OPTIONS, limit_of

        reason = no_kernel(node.op, KERNELS, OPTIONS) or limit_of(node.op)
        return Declined(reason) if reason else Supported()

    def tensor_kernel(self, function: TensorFunction) -> Any:
        """Return a kernel that calls a function with the tensors of rows."""
        return lambda call, *inputs: function(call.op, *inputs)

    def peer_rows(self, device: str, rank: int, size: int, seconds: float) -> RowExchange:
        """Return memory of a device, and the kernels that exchange rows through it."""
        from cortiq_triton.current_device import current
        from cortiq_triton.peer_rows import RowExchange

        with current(device):
            return RowExchange(device, rank, size, seconds)

    def table_function(self, table: Weight, name: str) -> TableFunction:
        """Return what looks up rows of a table on the device."""
        from cortiq_triton.table import DeviceTable

        return DeviceTable(table, name)

    def check_kernel(self, kernel: Kernel) -> None:
        """Refuse what is no function, and kernels for operators that take none."""
        super().check_kernel(kernel)
        if issubclass(kernel.op, (*MATRICES, ops.Reshape)):
            what = f"{kernel.owner} is for {kernel.op.__name__}, which takes no kernel on triton"
            raise BackendError(what, hint="Matrices are packed for the backend's own kernels.")

    def compile(
        self, program: Program, weights: Mapping[str, Weight], options: CompileOptions
    ) -> TritonExecutable:
        """Look at the device's arithmetic, then bind the program to its weights there.

        Raises
        ------
        BackendError : there is no such device, or its arithmetic is not the contract's.
        DeviceMemoryError : the weights do not fit its memory.
        """
        device = device_named(self.name, options, self.devices())
        import torch

        from cortiq_triton.current_device import current
        from cortiq_triton.executable import TritonExecutable
        from cortiq_triton.self_test import check_device

        try:
            with current(device):
                check_device(device)
                return TritonExecutable(program, weights, options, device, self.given)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            raise DeviceMemoryError(
                f"the weights do not fit the memory of {device}",
                hint="Choose a smaller format (--format w8), or free the device's memory.",
            ) from error


def interpreter_asked_for() -> bool:
    """Whether the environment asks for Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def _made_for_the_interpreter() -> bool:
    from cortiq_triton.language import INTERPRETED

    return INTERPRETED


def _interpreter() -> Device:
    """The interpreter, if Triton was told in time."""
    from cortiq_triton.language import INTERPRETED, helpers_are_interpreted

    if not INTERPRETED or not helpers_are_interpreted():
        raise BackendError(
            "TRITON_INTERPRET was set after triton was imported, too late for it to interpret",
            hint="Set TRITON_INTERPRET=1 before Python starts.",
        )
    return Device(INTERPRETER, "Triton's interpreter: checks bits, very slow")


def check_driver() -> None:
    """Raise BackendError where the driver of NVIDIA is missing or finds no GPU.

    The driver is asked itself, in milliseconds: importing torch takes a second.
    """
    library = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        status = ctypes.CDLL(library).cuInit(0)
    except OSError:
        raise BackendError("there is no driver of an NVIDIA GPU", hint=NO_GPU_HINT) from None
    if status == NO_DEVICE:
        raise BackendError("the driver finds no NVIDIA GPU", hint=NO_GPU_HINT)


def gpus() -> list[Device]:
    """CUDA's devices."""
    check_driver()
    import torch

    if not torch.cuda.is_available():
        raise BackendError(_why_no_gpu(), hint=NO_GPU_HINT)
    found, old = [], []
    for index in range(torch.cuda.device_count()):
        name, capability = (
            torch.cuda.get_device_name(index),
            torch.cuda.get_device_capability(index),
        )
        if capability < OLDEST:
            old.append(f"{name} has compute capability {capability[0]}.{capability[1]}")
        else:
            found.append(Device(f"cuda:{index}", name))
    if not found:
        raise BackendError(f"no GPU of capability 8.0 or later: {'; '.join(old)}")
    return found


def _why_no_gpu() -> str:
    """Return torch's reason why CUDA is not there."""
    import torch

    if torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    try:
        torch.cuda.init()
    except Exception as error:
        return f"CUDA {torch.version.cuda} does not start: {str(error).splitlines()[0]}"
    return "there is no NVIDIA GPU"
