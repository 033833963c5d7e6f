"""An operator of a package's own, on every backend: x divided by the mean of its magnitudes.

The reference kernel defines its bits; C, Triton and WGSL compute the same. The C function is in
`mean_norm.c`, and its library, which whoever builds the package compiles, lies beside this file or
where `CORTIQ_MEAN_NORM` says.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cortiq.hookspecs import hookimpl
from cortiq.ir import Type
from cortiq.ir.op import LastAxis

if TYPE_CHECKING:
    from cortiq.backend import Kernel

NAME = "mean-norm"
WGSL = """
  for (var part = 0u; part < $input0_n; part += $width) {
    let from_ = $input0 + row * $input0_n + part;
    let to = $output0 + row * $output0_n + part;
    var sum = 0.0;
    for (var i = lane; i < $width; i += LANES) {
      sum = add(sum, from_bits(x[from_ + i] & 0x7fffffffu));
    }
    let mean = multiply(fold(lane, LANES, sum), from_bits($inverse));
    let factor = divide(1.0, add(mean, from_bits($eps)));
    for (var i = lane; i < $width; i += LANES) {
      let y = multiply(from_bits(x[from_ + i]), factor);
      x[to + i] = canonical(multiply(y, from_bits(w[$gain + i])), row);
    }
  }
"""


@dataclass(frozen=True)
class MeanNorm(LastAxis):
    """y = x / (mean |x| + eps) · gain, over the last axis."""

    width: int
    eps: float = 1e-3

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """A gain a value."""
        return {"gain": (self.width,)}


def mean_norm(call: Any, x: Any) -> Any:
    """The definition, in NumPy."""
    import numpy as np

    from cortiq.numerics.contract import F32, snap
    from cortiq.numerics.sums import canonical_mean

    factor = F32(1) / (canonical_mean(np.abs(x)) + F32(call.op.eps))
    return snap(x * factor[..., None] * call.weights["gain"], call.faults)


def mean_norm_triton(call: Any, x: Any) -> Any:
    """The same in Triton, which is imported when it is needed."""
    from cortiq_mean_norm_triton import mean_norm

    return mean_norm(call, x)


def library_path() -> Path:
    """Where the C function is."""
    beside = Path(__file__).with_name("mean_norm.so")
    return Path(os.environ.get("CORTIQ_MEAN_NORM", beside))


class Constants(ctypes.Structure):
    """What the C function finds in `call->constants`."""

    _fields_ = (("eps", ctypes.c_float), ("inverse", ctypes.c_float), ("width", ctypes.c_int32))


def constants(op: MeanNorm) -> Constants:
    """ε, RN(1/width), and the width."""
    return Constants(op.eps, 1 / op.width, op.width)


def numbers(op: MeanNorm) -> dict[str, float | int]:
    """The same, as the shader names them."""
    return {"eps": op.eps, "inverse": 1 / op.width, "width": op.width}


def kernels() -> Iterator[Kernel]:
    """Kernels for the backends whose packages are installed."""
    from cortiq.backend import Kernel, OperatorExample

    examples = [
        OperatorExample(MeanNorm(width), (Type((*heads, width)),))
        for width, *heads in ((1,), (300,), (64, 3))
    ]
    yield Kernel("reference", MeanNorm, mean_norm, NAME, tuple(examples))
    yield Kernel("triton", MeanNorm, mean_norm_triton, NAME)
    if library_path().is_file():
        from cortiq_cpu import NativeKernel

        function = ctypes.CDLL(str(library_path())).mean_norm
        yield Kernel("cpu", MeanNorm, NativeKernel(function, constants), NAME)
    try:
        from cortiq_wgpu import RowShader
    except ImportError:
        return
    yield Kernel("wgpu", MeanNorm, RowShader(WGSL, numbers), NAME)


@hookimpl
def cortiq_kernels() -> Sequence[Kernel]:
    """The kernels of this package."""
    return list(kernels())
