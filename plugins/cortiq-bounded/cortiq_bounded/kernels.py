"""Kernels of this package's primitives, by backend, and examples for the conformance kit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from cortiq.backend import Kernel, OperatorExample, StepKernel
from cortiq.ir import Type
from cortiq_bounded import nystrom
from cortiq_bounded.native import nystrom_kernel
from cortiq_bounded.ops import NystromAttend, PhaseFeatures
from cortiq_bounded.phase import phase_features

NAME = "bounded"


NYSTROM = (
    NystromAttend(4, 2, 8, 8, 0.375, seal=17, landmarks=4, window=3, sinks=1),
    NystromAttend(
        2, 2, 24, 8, 0.2, seal=16, landmarks=4, window=1, sinks=0, exact=2, stride=2, reseal=4
    ),
    NystromAttend(
        3, 1, 16, 5, 0.25, seal=18, landmarks=4, window=2, sinks=2, reseal=5, rectifier="fm"
    ),
)
"""Sealed within the rows of a case, which are 24."""


PHASES = tuple(
    OperatorExample(PhaseFeatures(width), (Type((*heads, width)),))
    for width, *heads in ((1,), (300,), (64, 3))
)


def on_host(op: PhaseFeatures, x: Any) -> Any:
    """Return the features of rows [rows, values of a row] on the CPU."""
    return phase_features(x.reshape(len(x), -1, op.width))


def on_device(call: Any, x: Any) -> Any:
    """Return the features by a kernel in Triton, which is imported when it is needed."""
    from cortiq_bounded.phase_triton import phase_features as launched

    return launched(call, x)


def kernels() -> Iterator[Kernel]:
    """Yield the definitions, and kernels for the backends whose packages are installed."""
    step = StepKernel(lambda op: partial(nystrom.step, op))
    examples = tuple(OperatorExample(op, op.input_types()) for op in NYSTROM)
    yield Kernel("reference", NystromAttend, step, NAME, examples)
    yield Kernel("reference", PhaseFeatures, lambda call, x: phase_features(x), NAME, PHASES)
    yield Kernel("triton", PhaseFeatures, on_device, NAME)
    try:
        from cortiq_cpu.host_kernel import HostKernel
    except ImportError:
        return
    yield Kernel("cpu", PhaseFeatures, HostKernel(on_host).native, NAME)
    native = nystrom_kernel()
    if native is not None:
        yield Kernel("cpu", NystromAttend, native, NAME)
