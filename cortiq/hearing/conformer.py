"""Layers of Gemma's encoder of sound: half MLPs around attention and a short convolution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.whisper import written
from cortiq.ir import Builder, Value
from cortiq.ir.layers import Linear, Residual, RMSNorm
from cortiq.ir.ops import (
    Activation,
    Attend,
    CausalConv,
    Clamp,
    CombineExperts,
    Concat,
    Gain,
    Multiply,
    Quantise,
    Reshape,
    Scale,
    Slice,
    StoreKV,
)
from cortiq.models.clipped import bounded
from cortiq.models.parts import activation
from cortiq.numerics.contract import Floats
from cortiq.numerics.doubles import Doubles, exp64, log64
from cortiq.numerics.layouts import LAYOUTS, Weight, floats
from cortiq.numerics.sinusoids import projected_sinusoids

REMAINDER, TURN = "remainder", "turn"
"""Inputs: a 1 at the place of the position's remainder, for each head; and of each distance the
place of its key's remainder."""
EPS = 1e-6
"""Of norms that the configuration has none for."""
KEY_SCALE = math.log(1 + math.e) / math.log(2)


@dataclass(frozen=True)
class LayerFiles:
    """Names of a layer's tensors in folders, below the layer's own; Gemma 4's by default.

    Attributes
    ----------
    inner : end of a matrix's name before `.weight`. distances : the matrix of terms by distance.
    """

    first: str = "feed_forward1"
    second: str = "feed_forward2"
    before: str = "norm_pre_attn"
    attention: str = "self_attn"
    post: str = "self_attn.post"
    after: str = "norm_post_attn"
    last: str = "norm_out"
    inner: str = ".linear"
    distances: str = "relative_k_proj"


GEMMA4 = LayerFiles()


def places(window: int) -> int:
    """Return how many remainders of positions are told apart: not fewer than a row sees keys."""
    return -(-window // 16) * 16


def distance_inputs(count: int, heads: int, window: int) -> dict[str, Floats]:
    """Return what so many rows supply for terms by distance."""
    size = places(window)
    eye = np.eye(size, dtype=np.float32)
    at, distances = np.arange(count), np.arange(size)
    return {
        REMAINDER: np.repeat(eye[at % size][:, None], heads, axis=1),
        TURN: eye[(at[:, None] - distances) % size],
    }


def relative_tensors(
    checkpoint: Checkpoint, file: str, sizes: tuple[int, int, int], distances: str
) -> dict[str, Floats]:
    """Return the matrix of terms by distance, a head's below another's, and the gain of queries.

    A row of the matrix is the projected row of sines and cosines of a distance; rows of distances
    that are not seen are zeros. The gain is softplus(scale)/(√dim·ln 2), in float64.

    Parameters
    ----------
    sizes : heads, width and keys that a row sees. distances : name of the matrix, below `file`.
    """
    heads, width, window = sizes
    dim, count = width // heads, places(window)
    matrix = doubles_of(checkpoint, f"{file}.{distances}.weight", (width, width))
    terms = projected_sinusoids(matrix, window).reshape(window, heads, dim)
    made = np.zeros((heads, count, heads, dim), np.float32)
    for head in range(heads):
        made[head, :window, head] = terms[:, head]
    scale = doubles_of(checkpoint, f"{file}.per_dim_scale", (1, dim))
    gain = log64(1.0 + exp64(scale)) * (dim**-0.5 / math.log(2))
    return {
        f"{file}.distances.weight": made.reshape(heads * count, width),
        f"{file}.gain.weight": np.tile(gain.astype(np.float32)[0], heads),
    }


def doubles_of(checkpoint: Checkpoint, name: str, shape: tuple[int, int]) -> Doubles:
    """Return floats of a file, float64; FormatError for others, or for another size."""
    info = checkpoint.info(name)
    fits = math.prod(info.shape) == math.prod(shape) and info.type in ("F32", "F16", "BF16")
    if not fits:
        what = f"is {info.type} {list(info.shape)}, not floats {list(shape)}"
        raise FormatError(what, where=name)
    raw = np.ascontiguousarray(checkpoint.tensor(name).raw).reshape(-1)
    stored = Weight.from_bytes(LAYOUTS[info.type], raw, shape)
    return np.asarray(floats(stored, name), np.float64).reshape(shape)


def wide_heads(
    b: Builder, y: Value, shape: tuple[int, int], name: str, more: Value | None = None
) -> Value:
    """Write heads of a row, quantised, with further values of each."""
    y = b.add(Reshape(shape), y, name=f"{name}.heads")
    if more is not None:
        y = b.add(Concat(), y, more, name=f"{name}.wide")
    return b.add(Quantise(), y, name=f"{name}.quantised")


class Conformer:
    """Writes the layers.

    Attributes
    ----------
    config : of `gemma4` or `gemma3n`. files : names of tensors. key_scale : factor of keys.
    """

    def __init__(
        self, b: Builder, config: Any, position: Value, files: LayerFiles = GEMMA4,
        key_scale: float = KEY_SCALE,
    ) -> None:  # fmt: skip
        self.builder, self.config, self.position = b, config, position
        self.files, self.key_scale = files, key_scale
        self.width, self.heads = config.hidden_size, config.num_attention_heads
        count = places(config.window)
        self.remainder = b.input(REMAINDER, (self.heads, count), "f32")
        self.turn = b.input(TURN, (count, count), "f32")

    def layer(self, x: Value, number: int, file: str, out: str = "") -> Value:
        """Write a layer, under the name `out` where that is given."""
        here, names = f"layers.{number}", self.files
        x = self._half_mlp(x, f"{here}.first", f"{file}.{names.first}")
        y = self._clipped(x, f"{here}.held")
        y = self._norm(y, f"{here}.norm", f"{file}.{names.before}")
        y = self._attention(y, f"{here}.attention", f"{file}.{names.attention}")
        y = self._linear(y, f"{here}.attention.post", f"{file}.{names.post}", self.width)
        y = self._clipped(y, f"{here}.attention.held")
        y = self._norm(y, f"{here}.attention.norm", f"{file}.{names.after}")
        x = self.builder.add(Residual(), y, x, name=f"{here}.attended")
        x = self._convolution(x, f"{here}.convolution", f"{file}.lconv1d")
        x = self._half_mlp(x, f"{here}.second", f"{file}.{names.second}")
        return self._norm(
            self._clipped(x, f"{here}.last"), out or f"{here}.out", f"{file}.{names.last}"
        )

    def _norm(self, x: Value, name: str, tensor: str, eps: float = EPS) -> Value:
        return written(self.builder, RMSNorm(self.width, eps), x, name, tensor)

    def _clipped(self, x: Value, name: str) -> Value:
        most = self.config.gradient_clipping
        return self.builder.add(Clamp(-most, most), x, name=name)

    def _linear(self, x: Value, name: str, tensor: str, outer: int) -> Value:
        low, high, least, most = self.config.bounds.get(tensor, (None,) * 4)
        x = bounded(self.builder, x, f"{name}.input", low, high)
        op = Linear(x.type.shape[-1], outer)
        y = written(self.builder, op, x, name, f"{tensor}{self.files.inner}")
        return bounded(self.builder, y, f"{name}.output", least, most)

    def _half_mlp(self, x: Value, name: str, file: str) -> Value:
        b, act = self.builder, Activation(activation(self.config.hidden_act))
        y = self._norm(self._clipped(x, f"{name}.held"), f"{name}.norm", f"{file}.pre_layer_norm")
        y = self._linear(y, f"{name}.up", f"{file}.ffw_layer_1", 4 * self.width)
        y = b.add(act, y, name=f"{name}.activation")
        y = self._linear(y, f"{name}.down", f"{file}.ffw_layer_2", self.width)
        y = self._norm(self._clipped(y, f"{name}.kept"), f"{name}.after", f"{file}.post_layer_norm")
        y = b.add(Scale(self.config.residual_weight), y, name=f"{name}.half")
        return b.add(Residual(), y, x, name=f"{name}.out")

    def _attention(self, x: Value, name: str, file: str) -> Value:
        """Write attention to the last keys, with a term by their distance."""
        b, dim, count = self.builder, self.width // self.heads, self.turn.type.shape[0]
        q, k, v = (
            self._linear(x, f"{name}.{role}", f"{file}.{role}_proj", self.width) for role in "qkv"
        )
        q = b.add(Gain(self.width), q, name=f"{name}.q.scaled",
                  weights={"weight": f"{file}.gain.weight"})  # fmt: skip
        if self.key_scale != 1.0:
            k = b.add(Scale(self.key_scale), k, name=f"{name}.k.scaled")
        terms = self._terms(q, name, file)
        wide = [
            wide_heads(b, y, (self.heads, dim), f"{name}.{role}", more)
            for role, y, more in (("q", q, terms), ("k", k, self.remainder), ("v", v, None))
        ]
        slots, sizes = {"kv": f"{name}.kv"}, (self.heads, dim + count, dim)
        b.add_node(StoreKV(*sizes), *wide[1:], name=f"{name}.store", slots=slots)
        cap, window = self.config.attention_logit_cap, self.config.window
        op = Attend(self.heads, *sizes, 1.0, window=window, soft_cap=cap)
        y = b.add(op, wide[0], self.position, name=f"{name}.attend", slots=slots)
        return b.add(Reshape((self.width,)), y, name=f"{name}.merged")

    def _terms(self, q: Value, name: str, file: str) -> Value:
        """Write the terms of each head, at the places of keys' remainders."""
        b, count = self.builder, self.turn.type.shape[0]
        op = Linear(self.width, self.heads * count)
        terms, turned = written(b, op, q, f"{name}.distances", f"{file}.distances"), []
        for head in range(self.heads):
            here, start = f"{name}.distances.{head}", head * count
            own = b.add(Slice(start, start + count), terms, name=here)
            turned.append(b.add(CombineExperts(), own, self.turn, name=f"{here}.turned"))
        joined = b.add(Concat(), *turned, name=f"{name}.turned") if self.heads > 1 else turned[0]
        return b.add(Reshape((self.heads, count)), joined, name=f"{name}.terms")

    def _convolution(self, x: Value, name: str, file: str) -> Value:
        b, width, eps = self.builder, self.width, self.config.rms_norm_eps
        y = self._norm(x, f"{name}.norm", f"{file}.pre_layer_norm", eps)
        y = self._linear(y, f"{name}.both", f"{file}.linear_start", 2 * width)
        y, gate = (
            b.add(Slice(n * width, (n + 1) * width), y, name=f"{name}.half.{n}") for n in range(2)
        )
        gate = b.add(Activation("sigmoid"), gate, name=f"{name}.gate")
        y = b.add(Multiply(), y, gate, name=f"{name}.gated")
        y = b.add(
            CausalConv(width, self.config.conv_kernel_size), y, name=f"{name}.conv",
            weights={"weight": f"{file}.depthwise_conv1d.weight"},
            slots={"ring": f"{name}.ring"},
        )  # fmt: skip
        y = self._norm(self._clipped(y, f"{name}.held"), f"{name}.after", f"{file}.conv_norm", eps)
        y = b.add(Activation(activation(self.config.hidden_act)), y, name=f"{name}.activation")
        y = self._linear(y, f"{name}.end", f"{file}.linear_end", width)
        return b.add(Residual(), y, x, name=f"{name}.out")
