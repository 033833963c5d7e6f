"""Layers and convolutions of Phi-4 multimodal's encoder of sound."""

from __future__ import annotations

from typing import Any

from cortiq.hearing.conformer import places, wide_heads
from cortiq.hearing.grid import BANDS, KERNEL, halved, write_entry
from cortiq.hearing.whisper import HIDDEN, written
from cortiq.ir import Builder, Value
from cortiq.ir.encoders import LAST
from cortiq.ir.layers import Embedding, LayerNorm, Linear, Residual
from cortiq.ir.ops import (
    Activation,
    Add,
    Attend,
    Bias,
    CausalConv,
    CombineExperts,
    Concat,
    Gain,
    Multiply,
    Reshape,
    Scale,
    Slice,
    StoreKV,
)
from cortiq.models.opt import EPS
from cortiq.models.parts import activation

TABLE, PLACES = "encoder.distances.weight", "encoder.places.weight"
"""Tables by a row's number in its run: the biases of all places by head, and a 1 at its own."""
RUN = 500
"""Rows that see one another."""
HELD = "held"
"""Input: 1 for a row of the sound, 0 for one of zeros."""


def _file(number: int, tensor: str) -> str:
    return f"encoder.encoders.{number}.{tensor}"


class Phi4Layers:
    """Writes the layers, and places beside heads.

    Attributes
    ----------
    config : of `cortiq.hearing.phi4mm`. terms, own : of a row, biases of all places by head, and a
        1 at its own place for each.
    """

    def __init__(self, b: Builder, config: Any) -> None:
        self.builder, self.config = b, config
        self.width, self.heads = config.hidden_size, config.num_attention_heads
        position, self.last = b.input("position"), b.input(LAST)
        size = places(RUN)
        terms, own = (
            b.add(Embedding(RUN, count), position, name=name, weights={"table": table})
            for count, name, table in (
                (self.heads * size, "distances", TABLE), (size, "place", PLACES),
            )
        )  # fmt: skip
        own = b.add(Concat(), *[own] * self.heads, name="places") if self.heads > 1 else own
        shape = Reshape((self.heads, size))
        self.terms = b.add(shape, terms, name="distances.heads")
        self.own = b.add(shape, own, name="places.heads")

    def write(self) -> None:
        """Write all layers, and what they read."""
        b, inner = self.builder, self.config.nemo_conv_channels
        inner *= halved(self.config.bands, self.config.times)
        frame, held = b.input(BANDS, (inner,), "f32"), b.input(HELD, (1,), "f32")
        x = self._linear(frame, "reduced", "encoder.embed.out", self.width)
        x = b.add(Reshape((1, self.width)), x, name="reduced.row")
        x = b.add(CombineExperts(), held, x, name="first")
        for n in range(self.config.num_hidden_layers):
            x = self._half_mlp(x, f"layers.{n}.first", _file(n, "feed_forward_in"))
            y = self._norm(x, f"layers.{n}.norm", _file(n, "layer_norm_att"))
            y = self._attention(y, f"layers.{n}.attention", _file(n, "self_attn"))
            x = b.add(Residual(), x, y, name=f"layers.{n}.attended")
            y = self._convolution(x, f"layers.{n}.convolution", _file(n, "conv"))
            x = b.add(Residual(), x, y, name=f"layers.{n}.convolved")
            x = self._half_mlp(x, f"layers.{n}.second", _file(n, "feed_forward_out"))
            last = n == self.config.num_hidden_layers - 1
            x = self._norm(x, HIDDEN if last else f"layers.{n}.out", _file(n, "layer_norm"))

    def _norm(self, x: Value, name: str, tensor: str) -> Value:
        return written(self.builder, LayerNorm(self.width, EPS), x, name, tensor)

    def _linear(self, x: Value, name: str, tensor: str, outer: int) -> Value:
        return written(self.builder, Linear(x.type.shape[0], outer, True), x, name, tensor)

    def _gated(self, x: Value, name: str, act: str, biases: tuple[str, ...] = ()) -> Value:
        """Write the first half of a row times a function of the second, each with its bias."""
        b, half = self.builder, x.type.shape[0] // 2
        parts = [
            b.add(Slice(n * half, (n + 1) * half), x, name=f"{name}.half.{n}") for n in range(2)
        ]
        for n, bias in enumerate(biases):
            weights = {"bias": bias}
            parts[n] = b.add(Bias(half), parts[n], name=f"{name}.bias.{n}", weights=weights)
        gate = b.add(Activation(activation(act)), parts[1], name=f"{name}.gate")
        return b.add(Multiply(), parts[0], gate, name=f"{name}.gated")

    def _half_mlp(self, x: Value, name: str, file: str) -> Value:
        b, inner = self.builder, self.config.intermediate_size
        y = self._norm(x, f"{name}.norm", f"{file}.layer_norm")
        y = self._linear(y, f"{name}.both", f"{file}.gate_up_proj", 2 * inner)
        y = self._gated(y, name, self.config.hidden_act)
        y = self._linear(y, f"{name}.down", f"{file}.down_proj", self.width)
        y = b.add(Scale(0.5), y, name=f"{name}.half")
        return b.add(Residual(), x, y, name=f"{name}.out")

    def _attention(self, x: Value, name: str, file: str) -> Value:
        b, dim = self.builder, self.width // self.heads
        q, k, v = (
            wide_heads(
                b, self._linear(x, f"{name}.{role}", f"{file}.{role}_proj", self.width),
                (self.heads, dim), f"{name}.{role}", more,
            )
            for role, more in (("q", self.terms), ("k", self.own), ("v", None))
        )  # fmt: skip
        slots, sizes = {"kv": f"{name}.kv"}, (self.heads, dim + places(RUN), dim)
        b.add_node(StoreKV(*sizes), k, v, name=f"{name}.store", slots=slots)
        op = Attend(self.heads, *sizes, dim**-0.5, until=True)
        y = b.add(op, q, self.last, name=f"{name}.attend", slots=slots)
        y = b.add(Reshape((self.width,)), y, name=f"{name}.merged")
        return self._linear(y, f"{name}.end", f"{file}.o_proj", self.width)

    def _convolution(self, x: Value, name: str, file: str) -> Value:
        b, width, inner = self.builder, self.width, f"{file}.dw_sep_conv_1d"
        y = self._norm(x, f"{name}.norm", f"{file}.layer_norm")
        y = self._linear(y, f"{name}.both", f"{file}.glu.ext_pw_conv_1d", 2 * width)
        biases = f"{file}.glu.b1", f"{file}.glu.b2"
        y = self._gated(y, name, self.config.conv_glu_type, biases)
        op = CausalConv(width, self.config.kernel_size, biased=True)
        weights = {role: f"{inner}.dw_conv.{role}" for role in ("weight", "bias")}
        slots = {"ring": f"{name}.ring"}
        y = b.add(op, y, name=f"{name}.conv", weights=weights, slots=slots)
        y = self._linear(y, f"{name}.mixed", f"{inner}.pw_conv", width)
        act = activation(self.config.conv_activation)
        y = b.add(Activation(act), y, name=f"{name}.activation")
        return self._linear(y, f"{name}.end", f"{file}.ext_pw_conv_1d", width)


def write_convolutions(b: Builder, config: Any) -> None:
    """Write the entries of the convolutions: after the first, of each channel, then of a place."""
    channels, act = config.nemo_conv_channels, activation(config.nemo_activation)
    inner = KERNEL**2 * channels

    def end(b: Builder, x: Value, name: str) -> Value:
        return b.add(Activation(act), x, name=name)

    for n in range(config.times):
        tensor, bands = f"encoder.embed.conv.{3 * n}", halved(config.bands, n + 1)
        op = Linear(channels if n else KERNEL**2, channels, True)
        own = f"encoder.embed.conv.{3 * n - 1}"

        def first(b: Builder, x: Value, name: str, own: str = own) -> Value:
            gain = {"weight": f"{own}.gain.weight"}
            x = b.add(Gain(inner), x, name=f"{name}.taps", weights=gain)
            taps = [
                b.add(Slice(i * channels, (i + 1) * channels), x, name=f"{name}.tap.{i}")
                for i in range(KERNEL**2)
            ]
            y = taps[0]
            for i, tap in enumerate(taps[1:], 1):
                y = b.add(Add(), y, tap, name=f"{name}.sum.{i}")
            return b.add(Bias(channels), y, name=f"{name}.apart", weights={"bias": f"{own}.bias"})

        write_entry(b, n, bands, op, tensor, end, *((first, inner) if n else ()))
