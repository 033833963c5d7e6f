"""Qwen2-VL: patches that RoPE turns on two axes, squares of four of them through an MLP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.ir import Program, Value
from cortiq.ir.images import AXES, ImageRows
from cortiq.ir.layers import Attention, LayerNorm, Residual
from cortiq.ir.ops import Activation, Multiply, Scale
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import named
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.numerics.rope import RopeTable, Sections
from cortiq.numerics.rope_scaling import Axial
from cortiq.vision.config import SIGHT, TEXT, VisionConfig, sight_values
from cortiq.vision.image import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    ImageProcessor,
    PixelRules,
    PreparedImage,
    Tile,
)
from cortiq.vision.tower import HIDDEN, ROWS, SQUARE, Tower

ARCHITECTURES = ("qwen2_vl",)
KEYS = Keys(harmless=frozenset({"spatial_patch_size", "in_channels", "rope_parameters"}))
NAMES = Names(fused=(FusedTensor("attn.qkv", ("attn.q", "attn.k", "attn.v")),))
PREFIXES: Mapping[str, str] = {
    f"{start}visual.{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (
        ("blocks.", "model.layers."), ("patch_embed.", "vision.patch_embed."),
        ("merger.", "projector."),
    )
}  # fmt: skip
ATTENTION: Mapping[str, str] = {
    **{role: f"{role}.weight" for role in "qkv"},
    **{f"{role}_bias": f"{role}.bias" for role in "qkv"},
    "o": "proj.weight", "o_bias": "proj.bias",
}  # fmt: skip
PAD = "<|image_pad|>"
EPS, STEEPNESS = 1e-6, 1.702
MOST_RATIO = 200
"""Longest edge of an image, in its shortest."""


@dataclass(frozen=True, kw_only=True)
class Config(VisionConfig):
    """Fields of `Qwen2VLVisionConfig`, under the usual names where they have others."""

    hidden_size: int = 1280
    intermediate_size: int = 5120
    num_hidden_layers: int = 32
    num_attention_heads: int = 16
    image_size: int = 1
    patch_size: int = 14
    hidden_act: str = "quick_gelu"
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    theta: float = 10000.0
    sections: tuple[int, ...] = ()

    @property
    def patch_width(self) -> int:
        """Values of a patch, whose frames are all the image."""
        return super().patch_width * self.temporal_patch_size


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    given = sight_values(whole, image_token="image_token_id")
    text = whole.get(TEXT, whole)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    names = {
        "depth": "num_hidden_layers", "num_heads": "num_attention_heads",
        "in_chans": "num_channels", "in_channels": "num_channels",
    }  # fmt: skip
    found = {names.get(key, key): value for key, value in given.items()}
    width, ratio = found.pop("embed_dim", 1280), found.pop("mlp_ratio", 4)
    if type(width) is not int or type(ratio) not in (int, float):
        raise FormatError(f"has embed_dim {width!r} and mlp_ratio {ratio!r}", where=SIGHT)
    own = found.pop("rope_parameters", None)
    theta = own.get("rope_theta") if isinstance(own, Mapping) else None
    return found | {
        "hidden_size": width, "intermediate_size": int(width * ratio),
        "sections": rope.get("mrope_section", ()), "theta": theta or 10000.0,
        "image_token": found.get("image_token", 151655),
    }  # fmt: skip


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    if config.hidden_act != "quick_gelu":
        raise UnsupportedError(f"activation {config.hidden_act!r}", where="config")
    tower, width = Tower(config, most, "qwen2_vl"), config.hidden_size
    axes = tower.builder.input(AXES, (2,))
    x, norm = tower.patches("vision.patch_embed.proj", biased=False), LayerNorm(width, EPS)
    quarter = config.head_width // 4
    op = Attention(
        width, config.num_attention_heads, config.kv_heads, config.head_width,
        rope=RopeTable(config.theta, config.head_width, Axial(2)), biased=True,
        output_biased=True, until=True, sections=Sections((quarter, quarter)),
    )  # fmt: skip
    for n in range(config.num_hidden_layers):
        here, file = f"layers.{n}", f"model.layers.{n}"
        x = tower.branch(
            x, op, f"{here}.attention", (norm, f"{file}.norm1"),
            named(op, f"{file}.attn", ATTENTION), f"{here}.middle",
            (tower.position, tower.last, axes),
        )  # fmt: skip
        y = tower.apply(norm, x, f"{here}.mlp_norm", f"{file}.norm2")
        y = _feed_forward(tower, y, here, file)
        x = tower.builder.add(Residual(), x, y, name=f"{here}.out")
    tower.apply(norm, x, HIDDEN, "projector.ln_q")
    tower.finish()
    inner = width * config.spatial_merge_size**2
    square = tower.builder.input(SQUARE, (inner,), "f32")
    y = tower.linear(square, "up", "projector.mlp.0", (inner, inner), biased=True)
    y = tower.builder.add(Activation("gelu"), y, name="activation")
    tower.linear(y, ROWS, "projector.mlp.2", (inner, config.text_width), biased=True)
    return tower.program()


def _feed_forward(tower: Tower, x: Value, here: str, file: str) -> Value:
    """Write down(u·σ(1.702·u)) with u = up(x)."""
    config, b = tower.config, tower.builder
    sizes = (config.hidden_size, config.intermediate_size)
    up = tower.linear(x, f"{here}.up", f"{file}.mlp.fc1", sizes, biased=True)
    steep = b.add(Scale(STEEPNESS), up, name=f"{here}.steep")
    share = b.add(Activation("sigmoid"), steep, name=f"{here}.share")
    product = b.add(Multiply(), up, share, name=f"{here}.product")
    return tower.linear(product, f"{here}.mlp", f"{file}.mlp.fc2", sizes[::-1], biased=True)


class Processor(ImageProcessor):
    """One tile of the image's own form, in whole squares, within limits of pixels."""

    marker = PAD

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token = config, config.image_token
        default = PixelRules("bicubic", CLIP_MEAN, CLIP_DEVIATION)
        self.rules = PixelRules.of(given, default)
        size, where = self.rules.size, "preprocessor_config.json"
        least = given.get("min_pixels") or size.get("shortest_edge", 56 * 56)
        largest = given.get("max_pixels") or size.get("longest_edge", 28 * 28 * 1280)
        self.factor = config.patch_size * config.spatial_merge_size
        if not all(type(n) is int for n in (least, largest)) or not 0 < least <= largest:
            raise FormatError(f"images of {least!r} to {largest!r} pixels", where=where)
        self.least, self.largest = least, largest
        self.most = max(largest, self.factor**2) // config.patch_size**2
        if len(config.sections) != 3:
            raise FormatError(f"mrope_section is {list(config.sections)}", where="config")
        self.rows = ImageRows(sections=Sections(config.sections))

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to whole squares; a patch has the image once for each frame."""
        config = self.config
        height, width, _ = pixels.shape
        size = squared_size(height, width, self.factor, self.least, self.largest)
        fitted = self.rules.values(resize(pixels, *size, self.rules.filter))
        cut, frames = patches(fitted, config.patch_size), config.temporal_patch_size
        cut = cut.reshape(len(cut), config.num_channels, 1, -1).repeat(frames, axis=2)
        down, across = (n // config.patch_size for n in size)
        axes = np.stack(np.divmod(np.arange(down * across), across), axis=1).astype(np.int32)
        merge = config.spatial_merge_size
        squares = grouped(down, across, merge)
        tile = Tile(cut.reshape(len(cut), -1), {AXES: axes}, squares)
        return PreparedImage((tile,), PAD * len(squares), (down // merge, across // merge))


def squared_size(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """Return the size in multiples of `factor` nearest to an image's, of `least` to `most` pixels.

    Raises
    ------
    RequestError : one edge is more than 200 times the other.
    """
    if max(height, width) > MOST_RATIO * min(height, width):
        what = f"an image of {width} × {height} pixels: one edge is too long for the other"
        raise RequestError(what, where="image", hint=f"at most {MOST_RATIO} times")
    down, across = round(height / factor) * factor, round(width / factor) * factor
    if down * across > most:
        shrink = math.sqrt(height * width / most)
        down = max(factor, math.floor(height / shrink / factor) * factor)
        across = max(factor, math.floor(width / shrink / factor) * factor)
    elif down * across < least:
        grow = math.sqrt(least / (height * width))
        down = math.ceil(height * grow / factor) * factor
        across = math.ceil(width * grow / factor) * factor
    return down, across
