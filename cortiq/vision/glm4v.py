"""GLM-4.1V, 4.5V and 4.6V: learned positions between which the tower interpolates, beside RoPE.

Squares of patches pass a convolution, then a matrix, a norm and a gated MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cortiq.ir import Program, Value
from cortiq.ir.encoders import ROWS, SQUARE
from cortiq.ir.images import AXES
from cortiq.ir.layers import Attention, GatedMLP, Gating, LayerNorm, RMSNorm
from cortiq.ir.ops import Activation, Permute
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import MLP, activation, named
from cortiq.numerics.column_order import ColumnOrder
from cortiq.vision import qwen
from cortiq.vision.positions import bicubic_places
from cortiq.vision.qwen import Arrangement, QwenConfig
from cortiq.vision.tower import HIDDEN, PLACES, TAPS, Tower

ARCHITECTURES = ("glm4v", "glm4v_moe", "glm46v")
KEYS = Keys(harmless=qwen.KEYS.harmless | {"out_hidden_size"})
NAMES = Names(fused=(qwen.QKV,))
PREFIXES: Mapping[str, str] = {
    f"{start}visual.{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (
        ("blocks.", "model.layers."), ("merger.", "projector."), ("downsample.", "downsample."),
        ("", "vision."),
    )
}  # fmt: skip
NORM_EPS = 1e-5
NEAR = 16
"""Rows of the table of positions around a patch."""


@dataclass(frozen=True, kw_only=True)
class Config(QwenConfig):
    """Fields of `Glm4vVisionConfig`; its layers' MLPs are as wide as the text model's rows."""

    hidden_size: int = 1536
    intermediate_size: int = 13696
    num_hidden_layers: int = 24
    num_attention_heads: int = 12
    image_size: int = 336
    hidden_act: str = "silu"
    attention_bias: bool = False
    rms_norm_eps: float = 1e-5
    sections: tuple[int, ...] = (8, 12, 12)

    @property
    def inner(self) -> int:
        """Width of the layers' MLPs."""
        return self.text_width

    @property
    def merged_inner(self) -> int:
        """Width of the projector's MLP."""
        return self.intermediate_size

    @property
    def gating(self) -> str | Gating:
        """Activation of the MLPs, or a way of joining with more options."""
        return activation(self.hidden_act)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return qwen.values({"image_token_id": 151343, **whole}, {})


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    tower, width = Tower(config, most, "glm4v"), config.hidden_size
    norm = RMSNorm(width, config.rms_norm_eps)
    x = tower.patches("vision.patch_embed.proj", biased=True)
    x = tower.apply(norm, x, "normed", "vision.post_conv_layernorm")
    table = "vision.embeddings.position_embedding.weight"
    x = tower.interpolated(x, config.side**2, table, NEAR)
    op = replace(qwen.rotated(config), biased=config.attention_bias, output_biased=False)
    return encoded(tower, config, x, op)


def encoded(tower: Tower, config: Config, x: Value, op: Attention, biased: bool = False) -> Program:
    """Write the layers, whose MLPs may have biases, and the projector; return the program."""
    axes, norm = tower.builder.input(AXES, (2,)), RMSNorm(config.hidden_size, config.rms_norm_eps)
    mlp = GatedMLP(config.hidden_size, config.inner, config.gating, biased)
    for n in range(config.num_hidden_layers):
        here, file = f"layers.{n}", f"model.layers.{n}"
        x = qwen.attend(tower, x, n, op, norm, axes)
        x = tower.branch(
            x, mlp, f"{here}.mlp", (norm, f"{file}.norm2"), named(mlp, f"{file}.mlp", MLP),
            f"{here}.out",
        )  # fmt: skip
    tower.apply(norm, x, HIDDEN, "vision.post_layernorm")
    tower.finish()
    _project(tower, config)
    return tower.program()


def _project(tower: Tower, config: Config) -> None:
    """Write a square's convolution, whose kernel has its columns by channel, and the merger."""
    count, width, text = config.spatial_merge_size**2, config.hidden_size, config.text_width
    inner, add = width * count, tower.builder.add
    x = tower.builder.input(SQUARE, (inner,), "f32")
    order = ColumnOrder.of(np.arange(inner).reshape(count, width).T.reshape(-1))
    x = add(Permute(order), x, name="by_channel")
    x = tower.linear(x, "downsample", "downsample", (inner, text), biased=True)
    x = tower.linear(x, "merged", "projector.proj", (text, text), biased=False)
    norm = LayerNorm(text, NORM_EPS)
    x = tower.apply(norm, x, "merged.norm", "projector.post_projection_norm")
    x = add(Activation("gelu"), x, name="merged.activation")
    mlp = GatedMLP(text, config.merged_inner, config.gating)
    add(mlp, x, name=ROWS, weights=named(mlp, "projector", MLP))


class Processor(qwen.Processor):
    """One tile of the image's own form; limits of pixels count every frame of a patch."""

    marker = "<|image|>"
    limits = (112 * 112, 28 * 28 * 15000)

    def fitted_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image is resized to; a small one is first made a square wide."""
        factor, frames = self.factor, self.config.temporal_patch_size
        if min(height, width) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        return qwen.squared_size(height, width, factor, self.least / frames, self.largest / frames)

    def arranged(self, down: int, across: int) -> Arrangement:
        """Return patches row by row, with their places in the table."""
        places, weights = bicubic_places(down, across, self.config.side)
        taps = {PLACES.format(n): column for n, column in enumerate(places.T)}
        return replace(super().arranged(down, across), inputs={**taps, TAPS: weights})
