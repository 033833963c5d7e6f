"""Matrices whose inputs and outputs are bounded, in towers of Gemma 4 E2B and E4B.

The bounds are scalars among the tensors. They become constants of the graph.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.ir import Builder, Value
from cortiq.ir.ops import Clamp

ENDS = ("input_min", "input_max", "output_min", "output_max")
Bounds = Mapping[str, tuple[float | None, ...]]
"""Values of `ENDS`, by the matrix; None for infinity."""
WIDTHS: Mapping[str, tuple[str, int]] = {"F32": ("<f", 4), "F16": ("<e", 2), "BF16": ("<f", 2)}


def bounds_of(checkpoint: Checkpoint, matrices: list[str]) -> Bounds:
    """Return the bounds of matrices.

    Raises
    ------
    FormatError : one is missing or no number, or the lower one is above the upper one.
    """
    found = {name: tuple(_scalar(checkpoint, f"{name}.{end}") for end in ENDS) for name in matrices}
    for name, (low, high, least, most) in found.items():
        if low > high or least > most:
            raise FormatError("has bounds without a value between them", where=name)
    return {
        name: tuple(None if math.isinf(bound) else bound for bound in ends)
        for name, ends in found.items()
    }


def _scalar(checkpoint: Checkpoint, name: str) -> float:
    info = checkpoint.info(name)
    if math.prod(info.shape) != 1 or info.type not in WIDTHS:
        what = f"is {info.type} {list(info.shape)}, not one number"
        raise UnsupportedError(what, where=name)
    form, size = WIDTHS[info.type]
    raw = checkpoint.tensor(name).raw.tobytes()[:size]
    value: float = struct.unpack(form, raw if info.type != "BF16" else b"\0\0" + raw)[0]
    if math.isnan(value):
        raise FormatError("is no number", where=name)
    return value


def bounded(b: Builder, x: Value, name: str, low: float | None, high: float | None) -> Value:
    """Write x within bounds, None for none."""
    return x if low is None and high is None else b.add(Clamp(low, high), x, name=name)
