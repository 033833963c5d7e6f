"""Fitting images to a square of the tower: by the shorter edge and a crop, by padding, or as is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, RequestError, UnsupportedError
from cortiq.numerics.pixels import Pixels, resize
from cortiq.vision.decode import MAX_PIXELS
from cortiq.vision.image import PixelRules

WHERE = "preprocessor_config.json"
Level = TypeVar("Level", bound=np.generic)


class SquareFit:
    """Rules of a processor's file for a square of so many pixels along an edge.

    Raises
    ------
    UnsupportedError : they make no such square. FormatError : a size is no number.
    """

    def __init__(self, rules: PixelRules, given: Mapping[str, Any], edge: int) -> None:
        self.rules, self.edge, size = rules, edge, rules.size
        self.pads = given.get("do_pad") is True
        self.shortest = size.get("shortest_edge", 0)
        crop = given.get("crop_size", edge)
        crop = (crop.get("height"), crop.get("width")) if isinstance(crop, Mapping) else (crop,)
        crops = given.get("do_center_crop", True) is True
        exact = (size.get("height"), size.get("width")) == (edge, edge)
        if any(type(n) is not int for n in crop):
            raise FormatError(f"crop_size is {given['crop_size']!r}", where=WHERE)
        cut = crops and set(crop) == {edge} and self.shortest >= edge
        if not exact and not cut:
            what = (
                f"size {dict(size)} and crop_size {given.get('crop_size')!r}, not {edge} × {edge}"
            )
            raise UnsupportedError(what, where=WHERE)

    def fitted(self, pixels: Pixels) -> Pixels:
        """Return an image in the tower's size."""
        pixels = self._padded(pixels) if self.pads else pixels
        if not self.shortest:
            return resize(pixels, self.edge, self.edge, self.rules.filter)
        height, width = shortest_size(pixels.shape[0], pixels.shape[1], self.shortest)
        pixels = resize(pixels, height, width, self.rules.filter)
        top, left = (height - self.edge) // 2, (width - self.edge) // 2
        return pixels[top : top + self.edge, left : left + self.edge]

    def _padded(self, pixels: Pixels) -> Pixels:
        """Return an image in the middle of a square of the mean colour."""
        height, width, _ = pixels.shape
        edge = max(height, width)
        colour = np.array([int(255 * mean) for mean in self.rules.mean], np.uint8)
        square = np.broadcast_to(colour, (edge, edge, 3)).copy()
        top, left = (edge - height) // 2, (edge - width) // 2
        square[top : top + height, left : left + width] = pixels
        return square


def shortest_size(height: int, width: int, edge: int) -> tuple[int, int]:
    """Return the size whose shorter edge is this, the other one ⌊edge·longer/shorter⌋.

    Raises
    ------
    RequestError : so many pixels are no image any more: one edge is too long for the other.
    """
    short, long = min(height, width), max(height, width)
    longer = int(edge * long / short)
    if edge * longer > MAX_PIXELS:
        what = f"an image of {width} × {height} pixels: one edge is too long for the other"
        raise RequestError(what, where="image", hint="cut it, or make it less long")
    return (longer, edge) if width <= height else (edge, longer)


def tiles_of(pixels: npt.NDArray[Level], edge: int, wide: int = 0) -> list[npt.NDArray[Level]]:
    """Cut an image of whole tiles into them, row by row; `wide` where they are no squares."""
    height, width, _ = pixels.shape
    wide = wide or edge
    corners = [(y, x) for y in range(0, height, edge) for x in range(0, width, wide)]
    return [pixels[y : y + edge, x : x + wide] for y, x in corners]
