"""LLaVA-NeXT: LLaVA's tower over the tiles of an image, and a row that ends each of its lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.numerics.pixels import Pixels, resize
from cortiq.vision import llava
from cortiq.vision.image import PreparedImage
from cortiq.vision.llava import IMAGE, Config

ARCHITECTURES = ("llava_next",)
KEYS, NAMES, PREFIXES, values = llava.KEYS, llava.NAMES, llava.PREFIXES, llava.values
__all__ = ["Config"]
LONGEST = 1 << 13
"""Edge of a canvas at most."""


def build(config: Config, most: int) -> Program:
    """Build tower, projector and the row that ends lines."""
    if not config.first_row:
        raise UnsupportedError("rows of whole tiles among those of lines", where="config")
    return llava.tower_of(config, most, "llava_next").program(newline="projector.newline")


class Processor(llava.Processor):
    """The whole image as a tile, then those of the canvas that fits it best.

    Rows of the text are those of the whole, then of the canvas line by line without the edges that
    it was padded with, each line with a row at its end.
    """

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        super().__init__(config, given)
        self.canvases = given.get("image_grid_pinpoints") or config.image_grid_pinpoints
        edge, where = config.image_size, "preprocessor_config.json"
        for canvas in self.canvases or [()]:
            good = isinstance(canvas, Sequence) and len(canvas) == 2
            if not good or any(type(n) is not int or not 0 < n <= LONGEST for n in canvas):
                raise FormatError(f"image_grid_pinpoints has {canvas!r}", where=where)
            if any(n % edge for n in canvas):
                what = f"image_grid_pinpoints has {list(canvas)}, no tiles of {edge}"
                raise FormatError(what, where=where)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to the whole's size and to a canvas, and cut the canvas into tiles."""
        edge, side, name = self.config.image_size, self.config.side, self.rules.filter
        size = pixels.shape[:2]
        height, width = best_canvas(size, self.canvases)
        canvas = _padded(resize(pixels, *_within(size, (height, width)), name), height, width)
        tiles = [resize(pixels, edge, edge, name)]
        tiles += [
            canvas[y : y + edge, x : x + edge]
            for y in range(0, height, edge)
            for x in range(0, width, edge)
        ]
        made = tuple(self.tile(tile) for tile in tiles)
        order = self._order(size, height // edge, width // edge, side)
        return PreparedImage(made, IMAGE * len(order), order=order)

    def _order(
        self, size: tuple[int, ...], down: int, across: int, side: int
    ) -> npt.NDArray[np.int64]:
        """Return the rows of the text among those of the tiles."""
        count = side * side
        grid = np.arange(count, (1 + down * across) * count).reshape(down, across, side, side)
        lines = grid.transpose(0, 2, 1, 3).reshape(down * side, across * side)
        lines = unpadded(lines, size)
        ends = np.full((len(lines), 1), (1 + down * across) * count)
        return np.concatenate([np.arange(count), np.hstack([lines, ends]).reshape(-1)])


def best_canvas(size: Sequence[int], canvases: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Return the canvas on which most of an image's pixels are kept, then the least wasted."""
    height, width = size

    def kept(canvas: Sequence[int]) -> tuple[int, int]:
        scale = min(canvas[1] / width, canvas[0] / height)
        pixels = min(int(width * scale) * int(height * scale), width * height)
        return pixels, pixels - canvas[0] * canvas[1]

    down, across = max(canvases, key=kept)
    return down, across


def _within(size: Sequence[int], canvas: tuple[int, int]) -> tuple[int, int]:
    """Return the size that touches two edges of a canvas."""
    (height, width), (down, across) = size, canvas
    wide, tall = across / width, down / height
    if wide < tall:
        return min(math.ceil(height * wide), down), across
    return down, min(math.ceil(width * tall), across)


def _padded(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return an image in the middle of a black canvas."""
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - pixels.shape[0]) // 2, (width - pixels.shape[1]) // 2
    canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return canvas


def unpadded(lines: npt.NDArray[np.int64], size: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return a canvas's rows without those at its edges that hold none of an image of a size."""
    (height, width), (down, across) = size, lines.shape
    if width / height > across / down:
        edge = (down - int(round(height * (across / width), 7))) // 2
        return lines[edge : down - edge]
    edge = (across - int(round(width * (down / height), 7))) // 2
    return lines[:, edge : across - edge]
