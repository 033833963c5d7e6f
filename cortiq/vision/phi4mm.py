"""Phi-4 multimodal: SigLIP over crops of a canvas and the whole of it, squares of patches averaged.

An image's lines of averages, and what stands between the canvas and the whole, go through the same
two matrices. Patches of a crop that lie in the canvas's white edge see the others, and are seen by
none: they come first, and rows list the blocks of those after them.

Source: Phi-4-Mini Technical Report (arXiv 2503.01743), and its published processor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError, RequestError, UnsupportedError, shown
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.conformer import doubles_of
from cortiq.ir import Program
from cortiq.ir.encoders import PLACE, PROJECTOR, ROWS, SHARES, SQUARE
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import Embedding, ListedBlocks
from cortiq.ir.ops import CombineExperts, Concat
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.numerics.contract import F32, Floats
from cortiq.numerics.pixels import Pixels, grouped, interpolate, patches, resize
from cortiq.vision.config import sight_values
from cortiq.vision.fit import tiles_of
from cortiq.vision.idefics3 import places_of
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.llava import layers_after
from cortiq.vision.qwen2_5_vl import LISTED
from cortiq.vision.siglip import SiglipConfig, layer, placed
from cortiq.vision.tower import HIDDEN, NEWLINE, Tower

ARCHITECTURES = ("phi4_multimodal", "phi4mm")
Rows = npt.NDArray[np.int64]
OWN_ADAPTER = "vision"
"""The adapter of the folder that prompts with images take."""
KEYS = Keys(
    harmless=frozenset({"embedding_cls", "enable_gradient_checkpointing", "model_type"}),
    only={
        "hd_transform_order": "sub_glb", "image_token_compression_cls": "avg_pool_2d",
        "projection_cls": "mlp", "use_hd_transform": True, "with_learnable_separator": True,
    },
)  # fmt: skip
HERE = "model.embed_tokens_extend.image_embed."
PREFIXES: Mapping[str, str] = {
    f"{HERE}{theirs}": mine
    for theirs, mine in (
        ("img_processor.", "vision."), ("img_projection_up.", "projector.linear_1."),
        ("img_projection_down.", "projector.linear_2."),
        ("img_projection.0.", "projector.linear_1."), ("img_projection.2.", "projector.linear_2."),
        ("sub_img_feature_extensor", "projector.line_end"), ("sub_GN", "projector.line_end"),
        ("global_img_feature_extensor", "projector.canvas_end"), ("glb_GN", "projector.canvas_end"),
    )
}  # fmt: skip
ENDS = ("projector.line_end", "projector.canvas_end")
"""Rows of the folder that end a line, and the canvas; a table is computed of both."""
TABLE, SIDE = "projector.ends", 2
"""That table, and the patches along a side of a square that becomes a row."""
IMAGE = "<|endoftext10|>"
CROPS, MOST_CROPS = 36, 256
LEAST = 10
"""Pixels along an image's edge at least, once it fits a canvas."""


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `Phi4MultimodalVisionConfig`, which are those of the published tower.

    Attributes
    ----------
    vision_feature_layer : layers that a row which is read has passed.
    """

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    image_size: int = 448
    patch_size: int = 14
    crop_size: int = 448
    vision_feature_layer: tuple[int, ...] = (26,)

    @property
    def blocks(self) -> ListedBlocks:
        """Blocks that rows list: one has room for the patches of a crop that none sees."""
        return ListedBlocks(2 * self.side, self.side // 2 + 1)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    found = sight_values(whole)
    token, read = found.pop("image_token_id", 200010), found.pop("feature_layer", -2)
    count = found.setdefault("num_hidden_layers", Config.num_hidden_layers)
    if type(read) is not int or type(count) is not int or not -count - 1 <= read <= count:
        raise FormatError(f"feature_layer {read!r} of {count!r} layers", where="config.json")
    passed = read if read >= 0 else count + 1 + read
    return found | {"image_token": token, "vision_feature_layer": (passed,)}


def NAMES(config: Config) -> Names:
    """Return the names; layers after the one that is read are no part of the graph."""
    after = layers_after(config, r"vision\.encoder\.layers")
    ends = "|".join(map(re.escape, ENDS))
    return Names(unread=rf"vision\.(post_layernorm|head)\..*|{ends}|{after}")


def computed(config: Config, checkpoint: Checkpoint) -> dict[str, Floats]:
    """Return the table of the rows that end a line and the canvas."""
    rows = [doubles_of(checkpoint, name, (1, config.hidden_size)) for name in ENDS]
    return {f"{TABLE}.weight": np.concatenate(rows).astype(F32)}


def build(config: Config, most: int) -> Program:
    """Build tower, projector and the rows that end lines, for crops of at most so many patches."""
    if config.side % SIDE or config.image_size % config.patch_size or config.side < SIDE:
        what = f"images of {config.image_size} pixels in squares of {SIDE}² patches of "
        raise UnsupportedError(f"{what}{config.patch_size}", where="config")
    if config.crop_size != config.image_size:
        what = f"crops of {config.crop_size} pixels for a tower of {config.image_size}"
        raise UnsupportedError(what, where="config")
    tower, width = Tower(config, most, "phi4mm"), config.hidden_size
    x, blocks = placed(tower, config), config.blocks
    listed = tower.builder.input(LISTED, blocks.type.shape)
    for n in range(config.vision_feature_layer[0]):
        x = layer(tower, config, x, n, blocks, listed)
    b, count = tower.builder, SIDE**2
    b.add(Concat(), x, name=HIDDEN)
    tower.finish()
    sizes = (width, config.text_width)
    square, shares = b.input(SQUARE, (count, width), "f32"), b.input(SHARES, (count,), "f32")
    mean = b.add(CombineExperts(), shares, square, name="mean")
    tower.two_layers(mean, "gelu", sizes, biased=True)
    b.graph(PROJECTOR, (ROWS,))
    b.input("position")
    weights = {"table": f"{TABLE}.weight"}
    row = b.add(Embedding(len(ENDS), width), b.input(PLACE), name="end", weights=weights)
    tower.two_layers(row, "gelu", sizes, biased=True, name=NEWLINE)
    b.graph(NEWLINE, (NEWLINE,))
    return b.program()


class Processor(ImageProcessor):
    """Crops of a canvas of whole crops that the image touches at two edges, then the whole of it.

    Rows of the text are those of the canvas line by line, without the lines and columns in its
    white edge, then a row that ends it, and those of the whole; each line has a row at its end.
    """

    marker, between = IMAGE, ""
    rows = ImageRows()

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token = config, config.image_token
        self.most = config.side**2 + 2 * config.blocks.size  # lists go on after the last block
        self.rules, where = PixelRules.of(given, PixelRules("bicubic")), "preprocessor_config.json"
        if self.rules.filter != "bicubic":
            raise UnsupportedError(f"resample {self.rules.filter}, not bicubic", where=where)
        edges = {self.rules.size.get(name, config.image_size) for name in ("height", "width")}
        patch = given.get("patch_size", config.patch_size)
        if edges != {config.image_size} or patch != config.patch_size:
            what = f"crops of {sorted(edges)} pixels in patches of {shown(patch)}"
            hint = f"the tower takes {config.image_size}, in patches of {config.patch_size}"
            raise UnsupportedError(what, where=where, hint=hint)
        self.crops = given.get("dynamic_hd", CROPS)
        if type(self.crops) is not int or not 0 < self.crops <= MOST_CROPS:
            what = f"dynamic_hd is {self.crops!r}, not 1 to {MOST_CROPS} crops"
            raise FormatError(what, where=where)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to a canvas, cut it into crops, and resize it to the whole."""
        edge, side, patch = self.config.image_size, self.config.side, self.config.patch_size
        down, across = best_canvas(pixels.shape[0], pixels.shape[1], edge, self.crops)
        canvas, size = fitted(pixels, down * edge, across * edge)
        values = self.rules.values(canvas)
        edges = ((down * edge, size[0]), (across * edge, size[1]))
        seen = [whole // patch - (whole - n) // patch for whole, n in edges]
        sizes = [
            (min(seen[0] - y * side, side), min(seen[1] - x * side, side))
            for y, x in np.ndindex(down, across)
        ]
        crops = [*tiles_of(values, edge), interpolate(values, edge, edge)]
        sizes.append((side, side))
        tiles = [self._tile(crop, *size) for crop, size in zip(crops, sizes, strict=True)]
        order = _order([(-(-h // SIDE), -(-w // SIDE)) for h, w in sizes], across)
        return PreparedImage(tuple(tiles), IMAGE * len(order), order=order)

    def _tile(self, values: Floats, down: int, across: int) -> Tile:
        """Return a crop as its patches that are seen, with those of the same squares before them,
        at the end of a block which begins with empty rows.

        Parameters
        ----------
        down, across : patches that are seen, of each column and line.
        """
        side, blocks = self.config.side, self.config.blocks
        high, wide = (-(-n // SIDE) * SIDE for n in (down, across))
        seen = np.zeros((high, wide), bool)
        seen[:down, :across] = True
        order = np.argsort(seen.reshape(-1), kind="stable")
        numbers = np.arange(side * side).reshape(side, side)[:high, :wide].reshape(-1)[order]
        start = blocks.size if down * across < len(order) else 0
        skipped = start - (len(order) - down * across) if start else 0
        cut = patches(values, self.config.patch_size)[numbers]
        cut = np.concatenate([np.zeros((skipped, cut.shape[1]), F32), cut])
        lines, columns = places_of(down, side), places_of(across, side)
        places = np.zeros(len(cut), np.int32)
        places[start:] = (lines[:, None] * side + columns).reshape(-1)
        listed = np.arange(blocks.count, dtype=np.int32) + start // blocks.size
        inputs = {PLACE: places, LISTED: np.tile(listed, (len(cut), 1, 1))}
        squares = (np.argsort(order) + skipped)[grouped(high, wide, SIDE)]
        return Tile(cut, inputs, squares)


def best_canvas(height: int, width: int, edge: int, most: int) -> tuple[int, int]:
    """Return the crops of a canvas, down and across.

    They are those that the image's own size has, rounded up; where there are more than `most`, the
    canvas whose form is nearest to the image's: of equally near ones the smallest, then every
    larger one that the image has more than half the pixels of.
    """
    down, across = (math.ceil(n / edge) for n in (height, width))
    if down * across <= most:
        return down, across
    forms = [(w, h) for w in range(1, most + 1) for h in range(1, most // w + 1)]
    best, nearest = (1, 1), math.inf
    for w, h in sorted(set(forms), key=lambda form: form[0] * form[1]):
        away = abs(width / height - w / h)
        enough = width * height > 0.5 * edge * edge * w * h
        if away < nearest or (away == nearest and enough):
            best, nearest = (w, h), away
    return best[1], best[0]


def fitted(pixels: Pixels, height: int, width: int) -> tuple[Pixels, tuple[int, int]]:
    """Return an image at the upper left of a white canvas, and its size there.

    Raises
    ------
    RequestError : one edge is too long for the other.
    """
    own = pixels.shape[:2]
    down, across = height / own[0], width / own[1]
    size = (int(own[0] * across), width) if across < down else (height, int(own[1] * down))
    if min(size) < LEAST:
        what = f"an image of {own[1]} × {own[0]} pixels: one edge is too long for the other"
        raise RequestError(what, where="image", hint="cut it, or make it less long")
    canvas = np.full((height, width, 3), 255, np.uint8)
    canvas[: size[0], : size[1]] = resize(pixels, *size, "bilinear")
    return canvas, size


def _order(sizes: Sequence[tuple[int, int]], across: int) -> Rows:
    """Return the rows of the text among those of the crops, and of the whole, which is the last.

    Parameters
    ----------
    sizes : lines and columns of rows of each of these. across : crops side by side.
    """
    starts = np.cumsum([0, *(down * wide for down, wide in sizes)])
    grids = [
        np.arange(start, start + down * wide).reshape(down, wide)
        for start, (down, wide) in zip(starts[:-1], sizes, strict=True)
    ]
    crops = [grids[n : n + across] for n in range(0, len(grids) - 1, across)]
    line_end, canvas_end = starts[-1], starts[-1] + 1

    def lines(grid: Rows) -> Rows:
        return np.hstack([grid, np.full((len(grid), 1), line_end)]).reshape(-1)

    return np.concatenate([lines(np.block(crops)), [canvas_end], lines(grids[-1])])
