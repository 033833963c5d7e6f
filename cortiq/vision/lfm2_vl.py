"""LFM2-VL: SigLIP 2 over an image's own form, or tiles of a large one; squares through an MLP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import SQUARE
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import LayerNorm, Residual
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.vision import llava
from cortiq.vision.config import sight_values
from cortiq.vision.fit import tiles_of
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.internvl import MOST_TILES, best_grid
from cortiq.vision.positions import triangle_shares
from cortiq.vision.siglip import SiglipConfig, layer
from cortiq.vision.tower import HIDDEN, TAPS, Tower

ARCHITECTURES = ("lfm2_vl",)
KEYS = Keys(harmless=frozenset({"vision_use_head", "image_size"}))
TABLE, PLACE = "vision.embeddings.position_embedding", "vision.embeddings.position"
NAMES = Names(fused=(FusedTensor(TABLE, (PLACE,), swapped=(PLACE,)),), unread=r"vision\.head\..*")
PREFIXES = llava.PREFIXES
IMAGE, BEGIN, END, WHOLE = "<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"
NORM_EPS = 1e-5
KEPT = ("projector_hidden_act", "projector_hidden_size", "projector_bias",
        "projector_use_layernorm", "downsample_factor")  # fmt: skip
SIZES = {"min_image_tokens": 64, "max_image_tokens": 256, "tile_size": 512, "min_tiles": 2,
         "max_tiles": 10}  # fmt: skip
MOST_ROWS = 1 << 14
"""Rows of an image, or of a tile, at most."""


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `Lfm2VlConfig`, and of its tower, a `Siglip2VisionConfig`.

    Attributes
    ----------
    num_patches : rows of the table of learned positions, a square.
    """

    image_size: int = 0
    num_patches: int = 256
    projector_hidden_act: str = "gelu"
    projector_hidden_size: int = 2560
    projector_bias: bool = True
    projector_use_layernorm: bool = True
    downsample_factor: int = 2

    @property
    def side(self) -> int:
        """Positions of the table along an edge."""
        return math.isqrt(self.num_patches)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return {"image_token": 396} | sight_values(
        whole, *KEPT, image_token="image_token_index,image_token_id"
    )


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for tiles of at most so many patches."""
    if config.side**2 != config.num_patches or config.downsample_factor < 1:
        what = f"{config.num_patches} positions, squares of {config.downsample_factor}²"
        raise FormatError(what, where="config")
    tower, width = Tower(config, most, "lfm2_vl"), config.hidden_size
    x = tower.patches("vision.embeddings.patch_embedding", biased=True)
    shares = tower.builder.input(TAPS, (config.num_patches,), "f32")
    place = tower.linear(shares, "place", PLACE, (config.num_patches, width), biased=False)
    x = tower.builder.add(Residual(), x, place, name="placed")
    for n in range(config.num_hidden_layers):
        x = layer(tower, config, x, n)
    norm = LayerNorm(width, config.layer_norm_eps)
    tower.apply(norm, x, HIDDEN, "vision.post_layernorm")
    tower.finish()
    inner = width * config.downsample_factor**2
    square = tower.builder.input(SQUARE, (inner,), "f32")
    if config.projector_use_layernorm:
        norm = LayerNorm(inner, NORM_EPS)
        square = tower.apply(norm, square, "square.norm", "projector.layer_norm")
    sizes = (inner, config.projector_hidden_size, config.text_width)
    tower.two_layers(square, config.projector_hidden_act, sizes, config.projector_bias)
    return tower.program()


class Processor(ImageProcessor):
    """The image in its own form; a large one as tiles of one size, and the whole of it."""

    marker = IMAGE
    rows = ImageRows()

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, where = config, config.image_token, "preprocessor_config.json"
        self.rules = PixelRules.of(given, PixelRules("bilinear"))
        self.square = config.patch_size * config.downsample_factor
        sizes = [given.get(name, default) for name, default in SIZES.items()]
        if any(type(n) is not int for n in sizes):
            raise FormatError(f"{', '.join(SIZES)} are {sizes}", where=where)
        self.least, self.largest, self.edge, self.fewest, self.tiles = sizes
        self.tolerance = given.get("max_pixels_tolerance", 2.0)
        self.splits = given.get("do_image_splitting", True) is True and self.tiles > 1
        self.thumbnail = given.get("use_thumbnail", True) is True
        own = {
            "encoder_patch_size": config.patch_size,
            "downsample_factor": config.downsample_factor,
        }
        if any(given.get(name, size) != size for name, size in own.items()):
            raise UnsupportedError(f"an image of other patches than {own}", where=where)
        if self.edge % self.square or not 0 < self.edge // self.square <= math.isqrt(MOST_ROWS):
            raise FormatError(f"tile_size {self.edge} in squares of {self.square}", where=where)
        if not 0 < self.least <= self.largest <= MOST_ROWS:
            raise FormatError(f"images of {self.least} to {self.largest} rows", where=where)
        if not 0 < self.fewest <= self.tiles <= MOST_TILES:
            raise FormatError(f"{self.fewest} to {self.tiles} tiles", where=where)
        rows = max(self.largest, (self.edge // self.square) ** 2 if self.splits else 0)
        self.most = rows * config.downsample_factor**2

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to whole squares within the limits of rows, or cut tiles out."""
        height, width, _ = pixels.shape
        size, name = self._fitted_size(height, width), self.rules.filter
        whole = self._tile(resize(pixels, *size, name))
        rows = IMAGE * len(whole.squares)
        if not (self.splits and self._large(height, width)):
            return PreparedImage((whole,), f"{BEGIN}{rows}{END}")
        down, across = best_grid(height, width, self.edge, self.fewest, self.tiles)
        fitted = resize(pixels, down * self.edge, across * self.edge, name)
        made = [self._tile(tile) for tile in tiles_of(fitted, self.edge)]
        text = "".join(
            f"<|img_row_{n // across + 1}_col_{n % across + 1}|>{IMAGE * len(tile.squares)}"
            for n, tile in enumerate(made)
        )
        if self.thumbnail:
            made, text = [*made, whole], f"{text}{WHOLE}{rows}"
        return PreparedImage(tuple(made), f"{BEGIN}{text}{END}")

    def _large(self, height: int, width: int) -> bool:
        """Return whether an image has too many pixels for one tile."""
        edges = [round(n / self.square) * self.square for n in (height, width)]
        down, across = (max(self.config.patch_size, edge) for edge in edges)
        return down * across > self.largest * self.square**2 * self.tolerance

    def _fitted_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size in whole squares that is nearest to an image's, within the limits."""
        factor, pixels = self.square, height * width
        down, across = (max(factor, round(n / factor) * factor) for n in (height, width))
        least, most = (rows * factor**2 for rows in (self.least, self.largest))
        if down * across > most:
            shrink = math.sqrt(pixels / most)
            down, across = (
                max(factor, math.floor(n / shrink / factor) * factor) for n in (height, width)
            )
        elif down * across < least:
            grow = math.sqrt(least / pixels)
            down, across = (math.ceil(n * grow / factor) * factor for n in (height, width))
        return down, across

    def _tile(self, pixels: Pixels) -> Tile:
        """Return an image, or a part of one, as its patches."""
        config = self.config
        cut = patches(self.rules.values(pixels), config.patch_size, by_pixel=True)
        down, across = (n // config.patch_size for n in pixels.shape[:2])
        squares = grouped(down, across, config.downsample_factor)
        return Tile(cut, {TAPS: triangle_shares(down, across, config.side)}, squares)
