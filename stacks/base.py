"""What a stack and a case are: the vocabulary of this folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Kernel = Callable[..., Array | tuple[Array, ...]]
"""NumPy arrays (and integer options) in, NumPy arrays out; the name says which arguments."""

ELEMENTWISE = {
    **dict.fromkeys(("add", "multiply", "divide", "round_two_planes"), 2),
    **dict.fromkeys(("sqrt", "rint", "exp", "exp2g", "log", "sigmoid", "silu", "gelu_tanh"), 1),
    **dict.fromkeys(("tanh", "softplus", "to_float", "round_int32"), 1),
    "round_three_planes": 3,
}
"""Kernels that map a scalar function over flat arrays to float32, with their argument counts."""
OF_INTEGERS = ("to_float", "round_int32", "round_two_planes", "round_three_planes")
"""Those of them whose arguments are int32."""

MATMULS = tuple(
    f"matmul_{layout}" for layout in ("w8", "w16", "w8b256", "q8_0", "q4_1", "q4_k", "q6_k")
)
"""Layouts of the matmul: one kernel, listed by what its blocks, planes and minima look like."""

ROWS = ("snap", "quantise_rows", "canonical_sum", "rms_norm", "argmax", "rope", "philox", "digest")
KERNELS = (*ELEMENTWISE, *ROWS, *MATMULS, "attention")
"""Every kernel; a stack that lacks one says so in the report."""


class NotHereError(Exception):
    """A stack cannot run on this machine; the message is the reason."""


@dataclass(frozen=True)
class Case:
    """One call of one kernel: its inputs, and the bits the contract says come out.

    Parameters
    ----------
    kernel : name of the kernel, as in the tables `KERNELS` of the stacks.
    label : what these inputs are for ("ties", "bounds", …).
    inputs : arrays, passed by position.
    expected : arrays, from `cortiq.numerics`.
    options : integers and flags passed by name; part of the kernel's compile-time shape.
    """

    kernel: str
    label: str
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stack:
    """One stack on one device, with the kernels it has by name."""

    name: str
    device: str
    kernels: Mapping[str, Kernel]

    def run(self, case: Case) -> tuple[Array, ...]:
        """Compute a case; the result is always a tuple of arrays."""
        out = self.kernels[case.kernel](*case.inputs, **case.options)
        return out if isinstance(out, tuple) else (out,)


@dataclass(frozen=True)
class Outcome:
    """How one case compared: values, live values (distinct, not zero), and differing ones."""

    values: int
    live: int
    differing: int


def bits(x: Array) -> Array:
    """The bit patterns of x, as unsigned integers of its width."""
    x = np.ascontiguousarray(x)
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def compare(expected: tuple[Array, ...], actual: tuple[Array, ...]) -> Outcome:
    """Compare bit patterns. Another number of arrays, dtype or shape counts as all differing."""
    values = sum(a.size for a in expected)
    live = sum(int(np.unique(bits(a)[bits(a) != 0]).size) for a in expected)
    if len(expected) != len(actual):
        return Outcome(values, live, values)
    differing = 0
    for want, got in zip(expected, actual, strict=True):
        if want.dtype != got.dtype or want.shape != got.shape:
            differing += want.size
        else:
            differing += int((bits(want) != bits(got)).sum())
    return Outcome(values, live, differing)
