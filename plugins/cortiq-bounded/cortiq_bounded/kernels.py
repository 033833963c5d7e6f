"""Kernels of this package's primitives, by backend, and examples for the conformance kit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cortiq.backend import Kernel, OperatorExample, StepKernel
from cortiq.ir import Op
from cortiq_bounded import nystrom
from cortiq_bounded.ops import NystromAttend

NAME = "bounded"


def example(op: Op) -> OperatorExample:
    """Return an operator with inputs of the types that it takes."""
    return OperatorExample(op, op.input_types())  # type: ignore[attr-defined]


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


def kernels() -> Iterator[Kernel]:
    """Yield the definitions."""
    step = StepKernel(lambda op: partial(nystrom.step, op))
    yield Kernel("reference", NystromAttend, step, NAME, tuple(map(example, NYSTROM)))
