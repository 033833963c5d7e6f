"""Matrices whose inputs and outputs are bounded (Gemma 4 E2B and E4B), and layers of them.

The bounds are scalars among the tensors. They become constants of the graph.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.ir import Value
from cortiq.ir.layers import Attention, GatedMLP
from cortiq.ir.ops import (
    Activation,
    Attend,
    Clamp,
    Multiply,
    Quantise,
    Reshape,
    RMSNorm,
    Rope,
    StoreKV,
)
from cortiq.vision.tower import Tower

ENDS = ("input_min", "input_max", "output_min", "output_max")
UNREAD = r"vision\.encoder\.layers\.\d+\.\w+\.\w+\.(in|out)put_(min|max)"
"""Tensors that are no weights."""
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


class ClippedLayers:
    """Writes layers of a tower whose matrices are clipped.

    Attributes
    ----------
    bounds : of the matrices, by their names.
    """

    def __init__(self, tower: Tower, bounds: Bounds) -> None:
        self.tower, self.bounds = tower, bounds

    def linear(self, x: Value, name: str, tensor: str, sizes: tuple[int, int]) -> Value:
        """Write a matrix (inputs, outputs) and the bounds of its rows."""
        low, high, least, most = self.bounds[tensor]
        x = self._bounded(x, f"{name}.input", low, high)
        y = self.tower.linear(x, name, f"{tensor}.linear", sizes, biased=False)
        return self._bounded(y, f"{name}.output", least, most)

    def _bounded(self, x: Value, name: str, low: float | None, high: float | None) -> Value:
        if low is None and high is None:
            return x
        return self.tower.builder.add(Clamp(low, high), x, name=name)

    def attend(self, x: Value, op: Attention, name: str, file: str, axes: Value) -> Value:
        """Write what `op` is, of the options that Gemma 4's towers have."""
        b, dim = self.tower.builder, op.head_dim
        assert op.rope is not None
        rows: dict[str, Value] = {}
        for role, heads in (("q", op.heads), ("k", op.kv_heads), ("v", op.kv_heads)):
            here, sizes = f"{name}.{role}", (op.width, heads * dim)
            y = self.linear(x, here, f"{file}.{role}_proj", sizes)
            y = b.add(Reshape((heads, dim)), y, name=f"{here}.heads")
            y = self._normed(y, op, role, here, file)
            if role != "v":
                y = b.add(Rope(op.rope, op.pairing, op.sections), y, axes, name=f"{here}.rope")
            rows[role] = b.add(Quantise(), y, name=f"{here}.quantised")
        slots = {"kv": f"{name}.kv"}
        store = StoreKV(op.kv_heads, dim, dim)
        b.add_node(store, rows["k"], rows["v"], name=f"{name}.store", slots=slots)
        look = Attend(op.heads, op.kv_heads, dim, dim, op.scale or dim**-0.5, until=True)
        y = b.add(look, rows["q"], self.tower.last, name=f"{name}.attend", slots=slots)
        y = b.add(Reshape((op.heads * dim,)), y, name=f"{name}.merged")
        return self.linear(y, name, f"{file}.o_proj", (op.heads * dim, op.width))

    def _normed(self, y: Value, op: Attention, role: str, here: str, file: str) -> Value:
        """Write the norm of the heads of q, k or v."""
        weighted = role != "v"
        eps = op.qk_norm.eps if weighted and op.qk_norm else op.value_norm
        assert eps is not None
        weights: dict[str, Any] = {"weight": f"{file}.{role}_norm.weight"} if weighted else {}
        norm = RMSNorm(op.head_dim, eps, weighted=weighted)
        return self.tower.builder.add(norm, y, name=f"{here}.norm", weights=weights)

    def feed_forward(self, x: Value, op: GatedMLP, name: str, file: str) -> Value:
        """Write what `op` is."""
        b, wide = self.tower.builder, (op.width, op.inner)
        gate = self.linear(x, f"{name}.gate", f"{file}.gate_proj", wide)
        up = self.linear(x, f"{name}.up", f"{file}.up_proj", wide)
        assert isinstance(op.activation, str)
        gate = b.add(Activation(op.activation), gate, name=f"{name}.activation")
        product = b.add(Multiply(), gate, up, name=f"{name}.product")
        return self.linear(product, name, f"{file}.down_proj", wide[::-1])
