"""Images cut into slices of one size beside the whole of it, as MiniCPM-V has them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.ir.images import ImageRows
from cortiq.numerics.pixels import Pixels, resize
from cortiq.vision.canvas import Canvas
from cortiq.vision.fit import tiles_of
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.siglip import SiglipConfig

WHERE = "preprocessor_config.json"
MOST_SLICES = 64
MOST_EDGE = 4096
"""Value of `scale_resolution` at most."""
SLACK = 4
"""Pixels of a slice at most, in squares of `scale_resolution`."""


class SliceProcessor(ImageProcessor):
    """The whole image near a square's number of pixels, and slices of one that has more.

    Attributes
    ----------
    unit : pixels that edges are multiples of. edge : of a square with as many pixels as a slice.
    place : text of a row of an image.
    """

    marker, numbered = "<|image_pad|>", "<image_id>{}</image_id>"
    place = marker
    rows = ImageRows()

    def __init__(self, config: SiglipConfig, given: Mapping[str, Any], merge: int) -> None:
        self.config: Any = config
        self.token, self.unit = config.image_token, config.patch_size * merge
        self.rules = PixelRules.of(given, PixelRules("bicubic"))
        sizes = [given.get("scale_resolution", 448), given.get("max_slice_nums", 9)]
        if any(type(n) is not int or n < 1 for n in sizes):
            raise FormatError(f"scale_resolution and max_slice_nums are {sizes}", where=WHERE)
        self.edge, self.most_slices = sizes
        if self.edge > MOST_EDGE or self.most_slices > MOST_SLICES or self.edge < self.unit:
            what = f"{self.most_slices} slices of {self.edge}² pixels"
            raise UnsupportedError(what, where=WHERE)
        own = given.get("patch_size", config.patch_size)
        if own != config.patch_size:
            what = f"patches of {own!r} pixels, {config.patch_size} of the tower"
            raise UnsupportedError(what, where=WHERE)
        self.slices = given.get("slice_mode", True) is True
        if given.get("use_image_id", True) is not True:
            self.numbered = ""
        self.most = SLACK * (-(-self.edge // config.patch_size)) ** 2

    @abstractmethod
    def tile(self, pixels: Pixels) -> Tile:
        """Return a part of the image, whose edges are multiples of `unit`."""

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize the whole, then to the grid of slices, and cut.

        Raises
        ------
        RequestError : one edge is too long for the other.
        """
        height, width, _ = pixels.shape
        grid = best_slices(height, width, self.edge, self.most_slices) if self.slices else None
        size = self._size(height, width, grow=grid is None)
        tiles = [self.tile(resize(pixels, *size, self.rules.filter))]
        text = self._text(tiles[0], "<image>", "</image>")
        if grid is None:
            return PreparedImage(tuple(tiles), text, canvas=self.canvas(size, size, (0, 0)))
        (down, across), whole = grid, size
        size = self._size(max(round(height / down), 1), max(round(width / across), 1), grow=True)
        fitted = resize(pixels, size[0] * down, size[1] * across, self.rules.filter)
        cut = [self.tile(part) for part in tiles_of(fitted, *size)]
        lines = [cut[start : start + across] for start in range(0, len(cut), across)]
        rows = ("".join(self._text(one, "<slice>", "</slice>") for one in line) for line in lines)
        canvas = self.canvas(whole, size, grid)
        return PreparedImage((*tiles, *cut), text + "\n".join(rows), canvas=canvas)

    def canvas(
        self, whole: tuple[int, int], part: tuple[int, int], grid: tuple[int, int]
    ) -> Canvas | None:
        """Return the canvas of slices: of the size of the whole image and of a slice in pixels, and
        of how many there are; None where tokens have a text's positions.
        """

    def _text(self, tile: Tile, begin: str, end: str) -> str:
        return f"{begin}{self.place * len(tile.squares)}{end}"

    def _size(self, height: float, width: float, grow: bool) -> tuple[int, int]:
        """Return the size in whole units of an image that keeps its number of pixels, or has that
        of the square: where it has more, or where it shall grow to that.
        """
        asked = f"{width} × {height}"
        if grow or height * width > self.edge**2:
            ratio = width / height
            height = int(self.edge / math.sqrt(ratio))
            width = int(height * ratio)
        down, across = (max(round(n / self.unit), 1) for n in (height, width))
        side = self.unit // self.config.patch_size
        if down * across * side**2 > self.most:
            what = f"an image of {asked} pixels: one edge is too long for the other"
            raise RequestError(what, where="image", hint="cut it, or make it less long")
        return down * self.unit, across * self.unit


def best_slices(height: int, width: int, edge: int, most: int) -> tuple[int, int] | None:
    """Return the rows and columns of slices of an image; None where it is not cut.

    So many squares of `edge` as hold its pixels, one fewer or one more: the grid whose form is
    nearest to the image's, by logarithms; of equal ones the first, or one of more rows.
    """
    wanted = min(math.ceil(width * height / (edge * edge)), most)
    if wanted <= 1:
        return None
    form, best, least = math.log(width / height), (1, 1), math.inf
    for count in (wanted - 1, wanted, wanted + 1):
        if count == 1 or count > most:
            continue
        for down in (n for n in range(1, count + 1) if count % n == 0):
            error = abs(form - math.log(count // down / down))
            if error < least or (error == least and down > best[0]):
                best, least = (down, count // down), error
    return best
