"""Llama 3.2 Vision's images: the canvas of tiles that one fits best, and rows for the tower."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import UnsupportedError
from cortiq.ir.encoders import PLACE
from cortiq.ir.images import ImageRows
from cortiq.numerics.contract import F32
from cortiq.numerics.pixels import Pixels, patches, resize
from cortiq.vision.fit import tiles_of
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Tile

IMAGE = "<|image|>"
WHERE = "preprocessor_config.json"
LISTED, OWN, LATE = "listed", "own", "place.after"
"""Inputs: blocks that a row sees, 0 for a row that is filled up, and its tile's row after the first
encoder."""
MOST_LISTED = 64
"""Tiles of a prompt's images at most."""


class TileProcessor(ImageProcessor):
    """Tiles of the canvas that an image fits best, at its upper left, on black."""

    marker = IMAGE

    def __init__(self, config: Any, given: Mapping[str, Any]) -> None:
        self.config, self.token = config, config.image_token
        self.most = 2 * config.blocks.count * config.tile  # lists go on after the last block
        self.rows = ImageRows(tile=config.tile, tiles=MOST_LISTED)
        self.rules = PixelRules.of(given, PixelRules("bilinear"))
        edge = config.image_size
        size = {self.rules.size.get(name, edge) for name in ("height", "width")}
        tiles = given.get("max_image_tiles", config.max_num_tiles)
        if size != {edge} or tiles != config.max_num_tiles:
            what = f"{tiles!r} tiles of {sorted(size)} pixels"
            hint = f"the tower takes {config.max_num_tiles} of {edge}"
            raise UnsupportedError(what, where=WHERE, hint=hint)
        if given.get("do_pad", True) is not True:
            raise UnsupportedError(f"do_pad = {given['do_pad']!r}", where=WHERE)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to the canvas, cut it into tiles, and put the rows that are not kept last."""
        config, edge = self.config, self.config.image_size
        form = best_form(pixels.shape[0], pixels.shape[1], config.forms, edge)
        height, width = form[0] * edge, form[1] * edge
        size = fitted_size(pixels.shape[0], pixels.shape[1], (height, width), edge)
        canvas = np.zeros((height, width, 3), np.uint8)
        canvas[: size[0], : size[1]] = resize(pixels, *size, self.rules.filter)
        cut = [patches(t, config.patch_size) for t in tiles_of(self.rules.values(canvas), edge)]
        most, rows, count = config.max_num_tiles, config.tile, len(cut)
        given = np.zeros((most, config.filled, config.patch_width), F32)
        given[:count, 1:rows] = np.stack(cut)
        tile, row = np.divmod(np.arange(most * config.filled), config.filled)
        own = (row < rows) & (tile < count)
        order = np.argsort(~own, kind="stable")
        tile, row, own = tile[order], row[order], own[order]
        first = config.forms.index(form) * most + tile
        places = first * rows + np.minimum(row, rows - 1)
        numbers = np.arange(config.blocks.count, dtype=np.int32)
        listed = np.where(own[:, None], numbers, _without(numbers, count))
        inputs = {
            PLACE: places.astype(np.int32), LATE: first.astype(np.int32),
            OWN: (row < rows).astype(F32)[:, None], LISTED: listed[:, None].astype(np.int32),
        }  # fmt: skip
        kept = np.arange(count * rows).reshape(-1, 1)
        made = Tile(given.reshape(-1, config.patch_width)[order], inputs, kept)
        return PreparedImage((made,), IMAGE, form, beside=True)


def _without(numbers: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    """Return the first numbers of blocks, then such as no row is in."""
    return np.where(numbers < count, numbers, numbers + len(numbers))


def best_form(height: int, width: int, forms: list[tuple[int, int]], edge: int) -> tuple[int, int]:
    """Return the tiles of the canvas for an image: down, across.

    The one that enlarges it least, or, where all are smaller, that shrinks it least; of equal ones
    that of the fewest tiles, then the first.
    """
    scales = [min(down * edge / height, across * edge / width) for down, across in forms]
    larger = [scale for scale in scales if scale >= 1]
    best = min(larger) if larger else max(scales)
    return min(
        (form for form, scale in zip(forms, scales, strict=True) if scale == best), key=math.prod
    )


def fitted_size(height: int, width: int, canvas: tuple[int, int], edge: int) -> tuple[int, int]:
    """Return the size of an image on a canvas: its own, at least a tile's and at most the canvas's
    along one edge.
    """
    down, across = (
        min(max(n, edge), most) for n, most in zip((height, width), canvas, strict=True)
    )
    tall, wide = down / height, across / width
    if wide < tall:
        return min(math.floor(height * wide) or 1, down), across
    return down, min(math.floor(width * tall) or 1, across)
