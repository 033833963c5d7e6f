"""Kernels of `KeepLargest`, and the cases on which the conformance kit compares them."""

from __future__ import annotations

from collections.abc import Iterator

from cortiq.backend import Kernel, OperatorExample
from cortiq.ir import Type
from cortiq_masks.operators import KeepLargest, keep_largest_rows, keep_on_host

NAME = "keep-largest"
EXAMPLES = (
    KeepLargest(1, 1),
    KeepLargest(300, 17),
    KeepLargest(96, 400),
    KeepLargest(700, 2, (100, 130, 400, 699)),
    KeepLargest(96, 1, (0, 32, 64), (1,)),
)


def kernels() -> Iterator[Kernel]:
    """Yield the definition, and a kernel for cpu where that is installed."""
    examples = tuple(OperatorExample(op, (Type((op.width,)),) * 2) for op in EXAMPLES)
    yield Kernel("reference", KeepLargest, keep_largest_rows, NAME, examples)
    try:
        from cortiq_cpu.host_kernel import HostKernel
    except ImportError:
        return
    yield Kernel("cpu", KeepLargest, HostKernel(keep_on_host).native, NAME)
