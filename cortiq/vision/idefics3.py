"""Idefics 3 and SmolVLM: SigLIP's tower over the tiles of an image, pixel shuffle and a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import PLACE, ROWS, SQUARE
from cortiq.ir.images import ImageRows
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.numerics.contract import F32
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.vision.config import sight_values
from cortiq.vision.fit import tiles_of
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.siglip import SiglipConfig, siglip_tower

ARCHITECTURES = ("idefics3", "smolvlm")
KEYS = Keys(harmless=frozenset({"use_base_siglip", "size", "max_image_size"}))
NAMES = Names()
PREFIXES: Mapping[str, str] = {"model.vision_model.": "vision.", "model.connector.": "projector."}
AROUND, WHOLE, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
LONGEST = 4096
"""Edge of an image at most, before it is cut."""


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `Idefics3Config`: patches along a square that becomes a row, and its tower's."""

    hidden_size: int = 1152
    num_attention_heads: int = 16
    patch_size: int = 32
    scale_factor: int = 2


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return {"image_token": 128257} | sight_values(
        whole, "scale_factor", image_token="image_token_id,image_token_index"
    )


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for tiles of at most so many patches."""
    if config.side % config.scale_factor:
        what = f"{config.side}² patches make no squares of {config.scale_factor}²"
        raise FormatError(what, where="config")
    tower = siglip_tower(config, "idefics3", most)
    width = config.hidden_size * config.scale_factor**2
    square = tower.builder.input(SQUARE, (width,), "f32")
    sizes = (width, config.text_width)
    tower.linear(square, ROWS, "projector.modality_projection.proj", sizes, biased=False)
    return tower.program()


def places_of(count: int, side: int) -> npt.NDArray[np.int32]:
    """Return the place in the table of each patch along an edge of `count`, of `side` places.

    RN(i·RN(1/count)), at most RN(1 − 10⁻⁶), is compared with RN(k/side) for k = 1 … side − 1: the
    place is how many of these are not above it.
    """
    fractions = np.arange(count).astype(F32) * (F32(1) / F32(count))
    fractions = np.minimum(fractions, F32(1.0 - 1e-6))
    step = 1.0 / side
    bounds = (step + np.arange(side - 1) * step).astype(F32)
    return np.searchsorted(bounds, fractions, side="right").astype(np.int32)


class Processor(ImageProcessor):
    """Tiles of the tower's size, row by row, and the whole image as one more."""

    marker = IMAGE
    rows = ImageRows()

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, self.most = config, config.image_token, config.side**2
        self.rules = PixelRules.of(given, PixelRules("lanczos", size={"longest_edge": 1456}))
        most = given.get("max_image_size")
        edge = most.get("longest_edge") if isinstance(most, Mapping) else None
        self.edge = config.image_size if edge is None else edge
        self.splits = given.get("do_image_splitting", True) is True
        longest = self.rules.size.get("longest_edge")
        if longest is None or self.edge != config.image_size or longest > LONGEST:
            what = f"tiles of {self.edge!r} pixels of an image of {dict(self.rules.size)}"
            raise UnsupportedError(what, where="preprocessor_config.json")
        self.longest = longest

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize by the longest edge, to whole tiles, and cut; then the whole image as a tile."""
        name, edge, (height, width, _) = self.rules.filter, self.edge, pixels.shape
        height, width = longest_size(height, width, self.longest)
        fitted = resize(pixels, height, width, name)
        if not self.splits:
            return self._image([resize(fitted, edge, edge, name)], 0, 0)
        fitted = resize(fitted, *tiled_size(height, width, edge), name)
        down, across = (size // edge for size in fitted.shape[:2])
        if down == across == 1:
            return self._image([fitted], 0, 0)
        return self._image(
            [*tiles_of(fitted, edge), resize(fitted, edge, edge, name)], down, across
        )

    def _image(self, tiles: list[Pixels], down: int, across: int) -> PreparedImage:
        """Return tiles of one size, and the text with a token for each of their rows."""
        side, factor = self.edge // self.config.patch_size, self.config.scale_factor
        places = places_of(side, self.config.side)
        numbers = (places[:, None] * self.config.side + places).reshape(-1)
        squares = grouped(side, side, factor)
        made = tuple(
            Tile(
                patches(self.rules.values(tile), self.config.patch_size), {PLACE: numbers}, squares
            )
            for tile in tiles
        )
        rows = IMAGE * len(squares)
        return PreparedImage(made, "".join(_pieces(down, across, rows)))


def _pieces(down: int, across: int, rows: str) -> Iterator[str]:
    """Yield the text of an image of so many tiles."""
    for y in range(down):
        yield from (f"{AROUND}<row_{y + 1}_col_{x + 1}>{rows}" for x in range(across))
        yield "\n"
    yield f"{chr(10) if down else ''}{AROUND}{WHOLE}{rows}{AROUND}"


def longest_size(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return the size whose longest edge is this; the other one is even, and at least 1."""
    ratio = width / height
    if width >= height:
        other = int(longest / ratio)
        return max(other + other % 2, 1), longest
    other = int(longest * ratio)
    return longest, max(other + other % 2, 1)


def tiled_size(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return the size in whole tiles: the longer edge rounded up, then the other in proportion."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / edge) * edge
        return math.ceil(int(width / ratio) / edge) * edge, width
    height = math.ceil(height / edge) * edge
    return height, math.ceil(int(height * ratio) / edge) * edge
