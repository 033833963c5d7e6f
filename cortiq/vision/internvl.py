"""InternVL 3: InternViT over the tiles of an image, squares of patches through two matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Op, Program, Value
from cortiq.ir.encoders import PLACE, SQUARE
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import MLP, Attention, Embedding, LayerNorm, QKNorm, Residual, RMSNorm
from cortiq.ir.ops import Concat
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import activation, named
from cortiq.numerics.contract import F32
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.vision import llava, siglip
from cortiq.vision.config import VisionConfig
from cortiq.vision.fit import tiles_of
from cortiq.vision.image import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    ImageProcessor,
    PixelRules,
    PreparedImage,
    Tile,
)
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("internvl",)
KEYS = Keys(
    harmless=frozenset({
        "image_seq_length", "layer_scale_init_value", "projection_dropout", "use_mask_token",
    }),
    only={"use_absolute_position_embeddings": True},
)  # fmt: skip
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (
        ("vision_tower.encoder.layer.", "model.layers."), ("vision_tower.", "vision."),
        ("multi_modal_projector.", "projector."),
    )
}  # fmt: skip
ATTENTION: Mapping[str, str] = {
    **siglip.ATTENTION, "o": "projection_layer.weight", "o_bias": "projection_layer.bias",
    "q_norm": "q_norm.weight", "k_norm": "k_norm.weight",
}  # fmt: skip
BEGIN, IMAGE, END = "<img>", "<IMG_CONTEXT>", "</img>"
CLASS, WHOLE = "class", "bias"
"""Inputs: 0 for the row that stands for the tile and 1 for patches, and the other way round."""
NORM_EPS, QK_EPS = 1e-5, 1e-6
MOST_TILES = 64


@dataclass(frozen=True, kw_only=True)
class Config(VisionConfig):
    """Fields of `InternVLConfig` and its tower, an `InternVLVisionConfig`."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    image_size: int = 448
    patch_size: int = 14
    hidden_act: str = "gelu"
    attention_bias: bool = False
    use_qk_norm: bool = False
    norm_type: str = "layer_norm"
    layer_norm_eps: float = 1e-6
    use_mean_pooling: bool = True
    downsample_ratio: float = 0.5
    projector_hidden_act: str = "gelu"
    vision_feature_layer: tuple[int, ...] = (24,)
    vision_feature_select_strategy: str = "default"

    @property
    def merge(self) -> int:
        """Patches along the side of a square that becomes a row."""
        return int(1 / self.downsample_ratio)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    given = {"vision_feature_layer": -1, "image_token_id": 151667, **whole}
    found = llava.tower_values(given, "downsample_ratio", layers=24)
    for key in ("image_size", "patch_size"):
        size = found.get(key)
        if isinstance(size, list) and len(size) == 2 and size[0] == size[1]:
            found[key] = size[0]
    found.pop("multimodal_projector_bias", None)
    return found


def NAMES(config: Config) -> Names:
    """Return the names; layers after the last that is read are no part of the graph."""
    after = llava.layers_after(config, r"model\.layers")
    return Names(unread=rf"vision\.embeddings\.mask_token|{after}")


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for tiles of at most so many patches."""
    tower, read = Tower(config, most, "internvl"), llava.checked_layers(config)
    _check(config, read)
    passed = [_placed(tower, config)]
    for n in range(max(read)):
        passed.append(_layer(tower, config, passed[-1], n))
    if not config.use_mean_pooling and read[0] == config.num_hidden_layers:
        norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        tower.apply(norm, passed[-1], HIDDEN, "vision.layernorm")
    else:
        tower.builder.add(Concat(), passed[read[0]], name=HIDDEN)
    tower.finish()
    inner = config.hidden_size * config.merge**2
    square = tower.builder.input(SQUARE, (inner,), "f32")
    y = tower.apply(LayerNorm(inner, NORM_EPS), square, "square.norm", "projector.layer_norm")
    sizes = (inner, config.text_width)
    tower.two_layers(y, config.projector_hidden_act, sizes, biased=True)
    return tower.program()


def _check(config: Config, read: tuple[int, ...]) -> None:
    rules = {
        f"vision_feature_layer {list(read)}": len(read) == 1,
        f"norm_type {config.norm_type!r}": config.norm_type in ("layer_norm", "rms_norm"),
        f"vision_feature_select_strategy {config.vision_feature_select_strategy!r}":
            config.vision_feature_select_strategy == "default",
        f"downsample_ratio {config.downsample_ratio}":
            0 < config.downsample_ratio <= 1 and config.side % config.merge == 0,
    }  # fmt: skip
    for what, holds in rules.items():
        if not holds:
            raise UnsupportedError(what, where="config")


def _placed(tower: Tower, config: Config) -> Value:
    """Write patches, or the row of the whole tile, and their learned positions."""
    kernel = "vision.embeddings.patch_embeddings.projection"
    x = tower.patches(kernel, biased=False)
    x = tower.marked(x, f"{kernel}.bias", WHOLE)
    x = tower.marked(x, "vision.embeddings.cls_token", CLASS)
    table, place = Embedding(config.side**2 + 1, config.hidden_size), tower.builder.input(PLACE)
    weights = {"table": "vision.embeddings.position_embeddings"}
    where = tower.builder.add(table, place, name="place.row", weights=weights)
    return tower.builder.add(Residual(), x, where, name="placed")


def _layer(tower: Tower, config: Config, x: Value, n: int) -> Value:
    """Write a layer, each of whose branches has gains."""
    width, here, file = config.hidden_size, f"layers.{n}", f"model.layers.{n}"
    kind: type[LayerNorm | RMSNorm] = LayerNorm if config.norm_type == "layer_norm" else RMSNorm
    norm: Op = kind(width, config.layer_norm_eps)
    op = Attention(
        width, config.num_attention_heads, config.kv_heads, config.head_width, until=True,
        biased=config.attention_bias, output_biased=True,
        qk_norm=QKNorm(QK_EPS, full_width=True) if config.use_qk_norm else None,
    )  # fmt: skip
    mlp = MLP(width, config.intermediate_size, activation(config.hidden_act), biased=True)
    x = tower.branch(
        x, op, f"{here}.attention", (norm, f"{file}.layernorm_before"),
        named(op, f"{file}.attention", ATTENTION), f"{here}.middle",
        (tower.position, tower.last), gain=f"{file}.lambda_1",
    )  # fmt: skip
    return tower.branch(
        x, mlp, f"{here}.mlp", (norm, f"{file}.layernorm_after"),
        named(mlp, f"{file}.mlp", siglip.FEED_FORWARD), f"{here}.out", gain=f"{file}.lambda_2",
    )  # fmt: skip


class Processor(ImageProcessor):
    """Tiles of the tower's size, row by row, and the whole image as one more."""

    marker = IMAGE
    rows = ImageRows()
    config: Any

    def __init__(self, config: VisionConfig, given: Mapping[str, Any]) -> None:
        self.config, self.token, self.most = config, config.image_token, config.side**2 + 1
        edge, where = config.image_size, "preprocessor_config.json"
        default = PixelRules("bicubic", CLIP_MEAN, CLIP_DEVIATION, size={"height": edge})
        self.rules = PixelRules.of(given, default)
        if any(n != edge for n in self.rules.size.values()):
            what = f"tiles of {dict(self.rules.size)} for a tower of {edge} pixels"
            raise UnsupportedError(what, where=where)
        least, largest = given.get("min_patches", 1), given.get("max_patches", 12)
        if any(type(n) is not int for n in (least, largest)):
            raise FormatError(f"{least!r} to {largest!r} tiles", where=where)
        if not 0 < least <= largest <= MOST_TILES:
            raise FormatError(f"{least} to {largest} tiles, at most {MOST_TILES}", where=where)
        self.least, self.largest = least, largest

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to the grid of tiles nearest in form, and cut; then the whole image as a tile."""
        edge, name = self.config.image_size, self.rules.filter
        height, width, _ = pixels.shape
        down, across = self.grid(height, width)
        fitted = resize(pixels, down * edge, across * edge, name)
        tiles = tiles_of(fitted, edge)
        if len(tiles) > 1:
            tiles.append(resize(pixels, edge, edge, name))
        made = tuple(self.tile(tile) for tile in tiles)
        return PreparedImage(made, self.text_of(made))

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tiles of an image."""
        return best_grid(height, width, self.config.image_size, self.least, self.largest)

    def text_of(self, tiles: tuple[Tile, ...]) -> str:
        """Return what stands for an image in the text."""
        return f"{BEGIN}{IMAGE * sum(len(tile.squares) for tile in tiles)}{END}"

    def tile(self, pixels: Pixels) -> Tile:
        """Return a tile as its patches, after a row for the whole."""
        config = self.config
        cut = patches(self.rules.values(pixels), config.patch_size)
        cut = np.concatenate([np.zeros((1, cut.shape[1]), F32), cut])
        count = np.arange(len(cut), dtype=np.int32)
        inputs = {PLACE: count, CLASS: np.minimum(count, 1), WHOLE: (count == 0).astype(np.int32)}
        return Tile(cut, inputs, grouped(config.side, config.side, config.merge) + 1)


def best_grid(height: int, width: int, edge: int, least: int, most: int) -> tuple[int, int]:
    """Return the rows and columns of tiles whose form is nearest to an image's.

    Grids are compared by how many tiles they have, then by columns. A later one of equal form
    is taken where the image has more than half as many pixels as its tiles.
    """
    grids = sorted(
        ((x, y) for x in range(1, most + 1) for y in range(1, most + 1) if least <= x * y <= most),
        key=lambda grid: grid[0] * grid[1],
    )
    best, nearest = (1, 1), float("inf")
    for x, y in grids:
        far = abs(width / height - x / y)
        larger = far == nearest and width * height > 0.5 * edge * edge * x * y
        if far < nearest or larger:
            best, nearest = (x, y), far
    return best[1], best[0]
