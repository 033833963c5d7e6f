"""Command A Vision and Aya Vision: SigLIP over tiles, squares of patches through a gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import PLACE, ROWS, SQUARE
from cortiq.ir.layers import LayerNorm
from cortiq.ir.ops import Activation, Concat, Multiply
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.pixels import Pixels, grouped, patches
from cortiq.vision import internvl, llava
from cortiq.vision.image import Tile
from cortiq.vision.siglip import SiglipConfig, layer, placed
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("cohere2_vision", "aya_vision")
AYA = "aya_vision"
KEYS = Keys(harmless=frozenset({"vision_use_head"}))
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (
        ("vision_tower.vision_model.", "vision."), ("vision_tower.", "vision."),
        ("multi_modal_projector.", "projector."),
    )
}  # fmt: skip
HALVES = FusedTensor("projector.linear_1", ("projector.up", "projector.gate"))
IMAGE, BEGIN, END = "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"
BREAK = "<|IMG_LINE_BREAK|>"
"""Text after a tile of Command A Vision."""


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `Cohere2VisionConfig` and `AyaVisionConfig`, and of a `SiglipVisionConfig`.

    Attributes
    ----------
    aya : rows are read before the tower's last norm, and squares have a norm of their own.
    """

    aya: bool
    downsample_factor: int = 2
    alignment_intermediate_size: int
    adapter_layer_norm_eps: float = 1e-6
    vision_feature_layer: tuple[int, ...]
    vision_feature_select_strategy: str = "full"


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    aya = whole["model_type"] == AYA
    kept = ("downsample_factor", "adapter_layer_norm_eps", "alignment_intermediate_size")
    given = {**whole, **({} if aya else {"vision_feature_layer": -1})}
    found = llava.tower_values({"vision_feature_layer": -1, **given}, *kept)
    wide = found["text_width"] if aya else 36864
    token = (
        {} if {"image_token_index", "image_token_id"} & whole.keys() else {"image_token": 255036}
    )
    return {"alignment_intermediate_size": wide, "aya": aya, **found, **token}


def NAMES(config: Config) -> Names:
    """Return the names; what comes after the layer that is read is no part of the graph."""
    after = llava.layers_after(config, r"vision\.encoder\.layers")
    norm = r"|vision\.post_layernorm\..*" if config.aya else ""
    return Names(fused=(HALVES,), unread=rf"vision\.head\..*|{after}{norm}")


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for tiles of at most so many patches."""
    read = llava.checked_layers(config)
    _check(config, read)
    tower, width = Tower(config, most, "cohere2_vision"), config.hidden_size
    x = placed(tower, config)
    for n in range(read[0]):
        x = layer(tower, config, x, n)
    if config.aya:
        tower.builder.add(Concat(), x, name=HIDDEN)
    else:
        tower.apply(LayerNorm(width, config.layer_norm_eps), x, HIDDEN, "vision.post_layernorm")
    tower.finish()
    inner, half = width * config.downsample_factor**2, config.alignment_intermediate_size // 2
    x = tower.builder.input(SQUARE, (inner,), "f32")
    if config.aya:
        norm = LayerNorm(inner, config.adapter_layer_norm_eps)
        x = tower.apply(norm, x, "square.norm", "projector.layernorm")
    gate, up = (
        tower.linear(x, role, f"projector.{role}", (inner, half), biased=True)
        for role in ("gate", "up")
    )
    gate = tower.builder.add(Activation("silu"), gate, name="activation")
    x = tower.builder.add(Multiply(), gate, up, name="product")
    tower.linear(x, ROWS, "projector.linear_2", (half, config.text_width), biased=True)
    return tower.program()


def _check(config: Config, read: tuple[int, ...]) -> None:
    factor = config.downsample_factor
    rules = {
        f"vision_feature_layer {list(read)}": len(read) == 1,
        f"vision_feature_select_strategy {config.vision_feature_select_strategy!r}":
            config.vision_feature_select_strategy == "full",
        f"downsample_factor {factor} of {config.side}² patches":
            factor > 0 and config.side % factor == 0,
        f"alignment_intermediate_size {config.alignment_intermediate_size}":
            config.alignment_intermediate_size > 1 and config.alignment_intermediate_size % 2 == 0,
    }  # fmt: skip
    for what, holds in rules.items():
        if not holds:
            raise UnsupportedError(what, where="config")


class Processor(internvl.Processor):
    """Tiles of the tower's size, row by row, and the whole image as one more."""

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        super().__init__(config, given)
        self.token, self.most = config.image_token, config.side**2
        self.marker = "<image>" if config.aya else IMAGE
        if given.get("crop_to_patches", not config.aya) is not True:
            self.least = self.largest = 1

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tiles of an image."""
        if self.config.aya:
            return super().grid(height, width)
        return best_canvas(height, width, self.config.image_size, self.largest)

    def text_of(self, tiles: tuple[Tile, ...]) -> str:
        """Return what stands for an image in the text."""
        rows = IMAGE * len(tiles[0].squares)
        if not self.config.aya:
            return f"{BEGIN}{(rows + BREAK) * len(tiles)}{END}"
        parts = (f"TILE_{n}{rows}" for n in range(1, len(tiles)))
        return f"{BEGIN}{''.join(parts)}TILE_GLOBAL{rows}{END}"

    def tile(self, pixels: Pixels) -> Tile:
        """Return a tile as its patches."""
        config = self.config
        cut = patches(self.rules.values(pixels), config.patch_size)
        places = {PLACE: np.arange(len(cut), dtype=np.int32)}
        return Tile(cut, places, grouped(config.side, config.side, config.downsample_factor))


def best_canvas(height: int, width: int, edge: int, most: int) -> tuple[int, int]:
    """Return the rows and columns of tiles into which an image fits with the least enlargement, or
    the least shrinking where it is larger than any.

    Grids are compared by how many tiles they have, then by columns; the first of equals counts.
    """
    grids = sorted(
        ((x, y) for x in range(1, most + 1) for y in range(1, most + 1) if x * y <= most),
        key=lambda grid: grid[0] * grid[1],
    )
    scales = [min(x * edge / width, y * edge / height) for x, y in grids]
    large = [scale for scale in scales if scale >= 1]
    x, y = grids[scales.index(min(large) if large else max(scales))]
    return y, x
