"""The parts of Qwen's towers: configuration, layers that RoPE turns on two axes, the processor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, RequestError
from cortiq.ir import Op, Value
from cortiq.ir.images import AXES, ImageRows
from cortiq.ir.layers import Attention
from cortiq.ir.ops import Activation
from cortiq.models.config import Keys
from cortiq.models.parts import named
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.numerics.rope import RopeTable, Sections
from cortiq.numerics.rope_scaling import Axial
from cortiq.vision.config import TEXT, VisionConfig, sight_values
from cortiq.vision.image import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    ImageProcessor,
    PixelRules,
    PreparedImage,
    Tile,
)
from cortiq.vision.tower import Tower

KEYS = Keys(harmless=frozenset({"spatial_patch_size", "in_channels", "rope_parameters"}))
QKV = FusedTensor("attn.qkv", ("attn.q", "attn.k", "attn.v"))
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
    "q_norm": "q_norm.weight", "k_norm": "k_norm.weight",
}  # fmt: skip
PAD = "<|image_pad|>"
EPS = 1e-6
FIELDS: Mapping[str, str] = {
    "depth": "num_hidden_layers", "num_heads": "num_attention_heads",
    "in_chans": "num_channels", "in_channels": "num_channels",
}  # fmt: skip
MOST_RATIO = 200
"""Longest edge of an image, in its shortest."""


@dataclass(frozen=True, kw_only=True)
class QwenConfig(VisionConfig):
    """Fields that Qwen's towers share, under the usual names."""

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
    def deep(self) -> int:
        """Layers of the text model that rows of an image are added to."""
        return 0

    @property
    def patch_width(self) -> int:
        """Values of a patch, whose frames are all the image."""
        return super().patch_width * self.temporal_patch_size


def values(whole: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return the configuration's keys.

    Parameters
    ----------
    renamed : field, by the key of a tower that has another name for it; "" for one that is unread.
    """
    given = sight_values(whole, image_token="image_token_id")
    text = whole.get(TEXT, whole)
    ropes = (text.get("rope_parameters"), text.get("rope_scaling"))
    rope = next((one for one in ropes if isinstance(one, Mapping) and one), {})
    names = {**FIELDS, **renamed}
    found = {names.get(key, key): value for key, value in given.items()}
    own = found.pop("rope_parameters", None)
    theta = own.get("rope_theta") if isinstance(own, Mapping) else None
    found |= {"theta": theta or 10000.0, "image_token": found.get("image_token", 151655)}
    found |= {"sections": rope["mrope_section"]} if "mrope_section" in rope else {}
    return {key: value for key, value in found.items() if key}


def rotated(config: QwenConfig, biased: bool = True, **options: Any) -> Attention:
    """Return attention whose heads turn by the row and the column of their patch."""
    quarter = config.head_width // 4
    return Attention(
        config.hidden_size, config.num_attention_heads, config.kv_heads, config.head_width,
        rope=RopeTable(config.theta, config.head_width, Axial(2)), biased=biased,
        output_biased=biased, until=True, sections=Sections((quarter, quarter)), **options,
    )  # fmt: skip


def attend(tower: Tower, x: Value, n: int, op: Attention, norm: Op, *inputs: Value) -> Value:
    """Write the attention of a layer."""
    here, file = f"layers.{n}", f"model.layers.{n}"
    return tower.branch(
        x, op, f"{here}.attention", (norm, f"{file}.norm1"), named(op, f"{file}.attn", ATTENTION),
        f"{here}.middle", (tower.position, tower.last, *inputs),
    )  # fmt: skip


def merged(
    tower: Tower,
    config: QwenConfig,
    x: Value,
    out: str,
    tensors: tuple[str, str],
    biased: bool = True,
) -> Value:
    """Write a merger's two matrices: rows of a square side by side, GELU, a row of the text."""
    inner = config.hidden_size * config.spatial_merge_size**2
    y = tower.linear(x, f"{out}.up", tensors[0], (inner, inner), biased)
    y = tower.builder.add(Activation("gelu"), y, name=f"{out}.activation")
    return tower.linear(y, out, tensors[1], (inner, config.text_width), biased)


@dataclass(frozen=True)
class Arrangement:
    """Patches of a grid as a tower takes them.

    Attributes
    ----------
    order : int64 [patches], their numbers row by row. inputs, squares : see `Tile`.
    """

    order: npt.NDArray[np.int64]
    inputs: Mapping[str, npt.NDArray[Any]]
    squares: npt.NDArray[np.int64]


class Processor(ImageProcessor):
    """One tile of the image's own form, in whole squares, within limits of pixels."""

    marker, interleaved = PAD, False
    limits = (56 * 56, 28 * 28 * 1280)
    """Pixels of an image at least and at most, unless the processor's file says."""
    config: Any

    def __init__(self, config: QwenConfig, given: Mapping[str, Any]) -> None:
        self.config, self.token = config, config.image_token
        default = PixelRules("bicubic", CLIP_MEAN, CLIP_DEVIATION)
        self.rules = PixelRules.of(given, default)
        size, where = self.rules.size, "preprocessor_config.json"
        least = given.get("min_pixels") or size.get("shortest_edge", self.limits[0])
        largest = given.get("max_pixels") or size.get("longest_edge", self.limits[1])
        self.factor = config.patch_size * config.spatial_merge_size
        if not all(type(n) is int for n in (least, largest)) or not 0 < least <= largest:
            raise FormatError(f"images of {least!r} to {largest!r} pixels", where=where)
        self.least, self.largest = least, largest
        self.most = self.most_pixels() // config.patch_size**2
        self.rows = self.supplied()

    def supplied(self) -> ImageRows:
        """Return what the trunk's rows supply."""
        config = self.config
        if len(config.sections) != 3:
            raise FormatError(f"mrope_section is {list(config.sections)}", where="config")
        sections = Sections(config.sections, self.interleaved)
        return ImageRows(sections=sections, deep=config.deep, width=config.text_width)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Fit to whole squares; a patch has the image once for each frame."""
        config, fitted = self.config, self.fitted(pixels)
        cut = patches(self.rules.values(fitted), config.patch_size)
        frames = config.temporal_patch_size
        cut = cut.reshape(len(cut), config.num_channels, 1, -1).repeat(frames, axis=2)
        down, across = (n // config.patch_size for n in fitted.shape[:2])
        made, merge = self.arranged(down, across), config.spatial_merge_size
        axes = np.stack(np.divmod(made.order, across), axis=1).astype(np.int32)
        cut = cut.reshape(len(cut), -1)[made.order]
        tile = Tile(cut, {AXES: axes, **made.inputs}, made.squares)
        text = self.marker * len(made.squares)
        return PreparedImage((tile,), text, (down // merge, across // merge))

    def most_pixels(self) -> int:
        """Return the pixels of the largest image that is made: more than the limit where that is
        below a line of squares, or where edges grown to the least are rounded up.

        With n squares at least, edges of a and n/a squares, a at most √(200·n), grow to fewer than
        (a + 1)·(n/a + 1).
        """
        squares, side = self.least / self.factor**2, math.sqrt(MOST_RATIO)
        grown = math.floor(squares + math.sqrt(squares) * (side + 1 / side) + 1)
        return max(self.largest, max(MOST_RATIO, grown) * self.factor**2)

    def fitted(self, pixels: Pixels) -> Pixels:
        """Return an image in whole squares."""
        return resize(pixels, *self.fitted_size(*pixels.shape[:2]), self.rules.filter)

    def fitted_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image is resized to."""
        return squared_size(height, width, self.factor, self.least, self.largest)

    def arranged(self, down: int, across: int) -> Arrangement:
        """Return the patches of an image row by row."""
        squares = grouped(down, across, self.config.spatial_merge_size)
        return Arrangement(np.arange(down * across), {}, squares)


def squared_size(
    height: int, width: int, factor: int, least: float, most: float
) -> tuple[int, int]:
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
