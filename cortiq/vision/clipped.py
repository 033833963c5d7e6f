"""Layers of matrices whose inputs and outputs are bounded (Gemma 4 E2B and E4B)."""

from __future__ import annotations

from typing import Any

from cortiq.ir import Value
from cortiq.ir.layers import Attention, GatedMLP
from cortiq.ir.ops import (
    Activation,
    Attend,
    Multiply,
    Quantise,
    Reshape,
    RMSNorm,
    Rope,
    StoreKV,
)
from cortiq.models.clipped import Bounds, bounded
from cortiq.vision.tower import Tower

UNREAD = r"vision\.encoder\.layers\.\d+\.\w+\.\w+\.(in|out)put_(min|max)"
"""Tensors that are no weights."""


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
        x = bounded(self.tower.builder, x, f"{name}.input", low, high)
        y = self.tower.linear(x, name, f"{tensor}.linear", sizes, biased=False)
        return bounded(self.tower.builder, y, f"{name}.output", least, most)

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
