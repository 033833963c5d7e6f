"""Pixtral and Mistral 3: patches that RoPE turns on two axes, lines of an image that tokens end.

Mistral 3 makes a row of the patches of a square; Pixtral's first models make a row of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import SQUARE
from cortiq.ir.images import AXES, ImageRows
from cortiq.ir.layers import Attention, GatedMLP, RMSNorm
from cortiq.ir.ops import Concat, Permute
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, activation, named
from cortiq.numerics.column_order import ColumnOrder
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.numerics.rope import RopeTable, Sections
from cortiq.numerics.rope_scaling import Staggered
from cortiq.vision import llava
from cortiq.vision.config import TEXT, VisionConfig
from cortiq.vision.image import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    ImageProcessor,
    PixelRules,
    PreparedImage,
    Tile,
)
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("mistral3", "llava pixtral")
KEYS = Keys(harmless=frozenset({"image_size"}))
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (
        ("vision_tower.transformer.layers.", "model.layers."), ("vision_tower.", "vision."),
        ("multi_modal_projector.", "projector."),
    )
}  # fmt: skip
MERGING = ("mistral3", "mistral_large4")
"""Models that make a row of several patches."""
IMAGE, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
EPS = 1e-5
LONGEST = 1 << 13
"""Edge of an image at most."""


@dataclass(frozen=True, kw_only=True)
class Config(VisionConfig):
    """Fields of `Mistral3Config` (or `LlavaConfig`) and its tower, a `PixtralVisionConfig`."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    image_size: int = 1024
    patch_size: int = 16
    hidden_act: str = "gelu"
    projector_hidden_act: str = "gelu"
    multimodal_projector_bias: bool = False
    vision_feature_layer: tuple[int, ...] = (24,)
    spatial_merge_size: int = 1
    merges: bool = False
    text_eps: float = EPS
    theta: float = 10000.0


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    merges, text = whole["model_type"] in MERGING, whole.get(TEXT, {})
    given: dict[str, Any] = {"vision_feature_layer": -1} if merges else {}
    given |= {"image_token_index": 10} if merges and "image_token_id" not in whole else {}
    found = llava.tower_values({**given, **whole}, "spatial_merge_size", layers=24)
    rope = found.pop("rope_parameters", None)
    theta = rope.get("rope_theta") if isinstance(rope, Mapping) else found.pop("rope_theta", None)
    strategy = found.pop("vision_feature_select_strategy", "full")
    if not merges and strategy != "full":
        raise UnsupportedError(f"vision_feature_select_strategy {strategy!r}", where="config")
    return {
        "multimodal_projector_bias": not merges, "merges": merges, "theta": theta or 10000.0,
        "text_eps": text.get("rms_norm_eps", EPS), "spatial_merge_size": 2 if merges else 1,
    } | found  # fmt: skip


def NAMES(config: Config) -> Names:
    """Return the names; layers after the last that is read are no part of the graph."""
    return Names(unread=llava.layers_after(config, r"model\.layers"))


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    read = llava.checked_layers(config)
    if config.merges and len(read) > 1:
        raise UnsupportedError(f"vision_feature_layer {list(read)}", where="config")
    tower, width = Tower(config, most, "pixtral"), config.hidden_size
    axes, norm = tower.builder.input(AXES, (2,)), RMSNorm(width, EPS)
    quarter = config.head_width // 4
    op = Attention(
        width, config.num_attention_heads, config.kv_heads, config.head_width, until=True,
        rope=RopeTable(config.theta, config.head_width, Staggered(2)),
        sections=Sections((quarter, quarter)),
    )  # fmt: skip
    mlp = GatedMLP(width, config.intermediate_size, activation(config.hidden_act))
    x = tower.patches("vision.patch_conv", biased=False)
    passed = [tower.apply(norm, x, "normed", "vision.ln_pre")]
    for n in range(max(read)):
        here, file = f"layers.{n}", f"model.layers.{n}"
        x = tower.branch(
            passed[-1], op, f"{here}.attention", (norm, f"{file}.attention_norm"),
            named(op, f"{file}.attention", ATTENTION), f"{here}.middle",
            (tower.position, tower.last, axes),
        )  # fmt: skip
        x = tower.branch(
            x, mlp, f"{here}.mlp", (norm, f"{file}.ffn_norm"),
            named(mlp, f"{file}.feed_forward", MLP), f"{here}.out",
        )  # fmt: skip
        passed.append(x)
    if config.merges:
        tower.apply(RMSNorm(width, config.text_eps), passed[read[0]], HIDDEN, "projector.norm")
    else:
        tower.builder.add(Concat(), *(passed[n] for n in read), name=HIDDEN)
    tower.finish()
    _project(tower, config)
    return tower.program()


def _project(tower: Tower, config: Config) -> None:
    """Write the merger, whose matrix has its columns by channel, and the two matrices."""
    width, read = config.hidden_size, len(config.vision_feature_layer)
    count = config.spatial_merge_size**2
    x = tower.builder.input(SQUARE, (width * read * count,), "f32")
    if config.merges:
        columns = np.arange(width * count).reshape(count, width).T.reshape(-1)
        x = tower.builder.add(Permute(ColumnOrder.of(columns)), x, name="by_channel")
        sizes = (width * count, width)
        x = tower.linear(x, "merged", "projector.patch_merger.merging_layer", sizes, biased=False)
    sizes = (width * read, config.text_width)
    tower.two_layers(x, config.projector_hidden_act, sizes, config.multimodal_projector_bias)


class Processor(ImageProcessor):
    """One tile of the image's own form, in whole squares; lines of rows end with a token."""

    marker = IMAGE
    rows = ImageRows()

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token = config, config.image_token
        default = PixelRules("bicubic", CLIP_MEAN, CLIP_DEVIATION, size={"longest_edge": 1024})
        self.rules = PixelRules.of(given, default)
        self.longest = self.rules.size.get("longest_edge", 0)
        self.square = config.patch_size * config.spatial_merge_size
        if not self.square <= self.longest <= LONGEST:
            what = f"images of {dict(self.rules.size)}"
            raise FormatError(what, where="preprocessor_config.json")
        along = -(-self.longest // self.square) * config.spatial_merge_size
        self.most = along**2

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Shrink to the longest edge, if it is longer, and resize to whole squares."""
        config, (height, width, _) = self.config, pixels.shape
        ratio = max(height / self.longest, width / self.longest)
        if ratio > 1:
            height, width = (max(1, math.floor(edge / ratio)) for edge in (height, width))
        down, across = ((n - 1) // self.square + 1 for n in (height, width))
        fitted = resize(pixels, down * self.square, across * self.square, self.rules.filter)
        cut, merge = (
            patches(self.rules.values(fitted), config.patch_size),
            config.spatial_merge_size,
        )
        axes = np.stack(np.divmod(np.arange(len(cut)), across * merge), axis=1).astype(np.int32)
        tile = Tile(cut, {AXES: axes}, grouped(down * merge, across * merge, merge))
        lines = BREAK.join([IMAGE * across] * down)
        return PreparedImage((tile,), f"{lines}{END}")
