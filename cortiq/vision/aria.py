"""Aria: SigLIP's tower of the image's own form, and learned queries that attend to its patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import PLACE, ROWS
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import Embedding, LayerNorm
from cortiq.ir.ops import Activation
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.pixels import Pixels, patches, resize
from cortiq.vision import llava, resampler
from cortiq.vision.idefics3 import places_of
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.siglip import SiglipConfig, layer, placed
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("aria",)
KEYS = Keys()
ATTEND = "projector.cross_attn.multihead_attn"
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (
        ("vision_tower.", "vision."),
        ("multi_modal_projector.cross_attn.multihead_attn.in_proj_", f"{ATTEND}.in_proj."),
        ("multi_modal_projector.cross_attn.multihead_attn.out_proj.", f"{ATTEND}.o."),
        ("multi_modal_projector.", "projector."),
    )
}  # fmt: skip
IMAGE = "<|img|>"
EPS = 1e-5
"""Of the projector's norms."""
QUERIES: Mapping[str, int] = {"1225": 128, "4900": 256}
"""Rows of an image, by the number of patches of its square."""
MOST_ROWS, LONGEST = 1 << 12, 1 << 13
"""Rows of an image, and pixels of an edge, at most."""


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `AriaConfig` and of its tower, an `Idefics3VisionConfig`.

    Attributes
    ----------
    queries : numbers of patches of a square image, and of the rows that it becomes.
    vision_feature_layer : layers that each row that is read has passed.
    """

    hidden_size: int = 1152
    num_attention_heads: int = 16
    patch_size: int = 32
    queries: tuple[tuple[int, ...], ...]
    vision_feature_layer: tuple[int, ...]


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    given = {"vision_feature_layer": -1, "image_token_index": 9}
    found = llava.tower_values({**given, **whole})
    name = "projector_patch_to_query_dict"
    listed = whole.get(name) or QUERIES
    try:
        pairs = tuple((int(patch), int(rows)) for patch, rows in dict(listed).items())
    except (TypeError, ValueError):
        pairs = ()
    if not pairs or any(not 0 < rows <= MOST_ROWS for _, rows in pairs):
        what = f"{name} is {listed!r}, no numbers of patches and of at most {MOST_ROWS} rows"
        raise FormatError(what, where="config.json")
    return {**found, "queries": pairs}


def NAMES(config: Config) -> Names:
    """Return the names; the tower's last norm is not read, nor layers after the one that is."""
    after = llava.layers_after(config, r"vision\.encoder\.layers")
    joined = FusedTensor(f"{ATTEND}.in_proj", tuple(f"{ATTEND}.{role}" for role in "qkv"))
    return Names(fused=(joined,), unread=rf"vision\.post_layernorm\..*|{after}")


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    tower, read = Tower(config, most, "aria"), llava.checked_layers(config)
    if len(read) > 1:
        raise UnsupportedError(f"vision_feature_layer {list(read)}", where="config")
    width, norm = config.hidden_size, LayerNorm(config.hidden_size, EPS)
    sizes, heads = (width, width), config.num_attention_heads
    x = placed(tower, config)
    for n in range(read[0]):
        x = layer(tower, config, x, n)
    x = tower.apply(norm, x, HIDDEN, "projector.cross_attn.layer_norm_kv")
    key, value = (
        tower.linear(x, f"key.{role}", f"projector.cross_attn.{role}_proj", sizes, biased=False)
        for role in "kv"
    )
    resampler.stored(tower, key, value, width, heads, ATTEND)
    tower.finish()
    table = Embedding(max(rows for _, rows in config.queries), width)
    weights = {"table": "projector.query"}
    x = tower.builder.add(table, tower.position, name="query", weights=weights)
    x = tower.apply(norm, x, "query.norm", "projector.cross_attn.layer_norm")
    x = tower.linear(x, "query.q", "projector.cross_attn.q_proj", sizes, biased=False)
    x = resampler.resampled(tower, x, width, heads, ATTEND)
    x = tower.linear(x, "attended", "projector.cross_attn.linear", sizes, biased=True)
    x = tower.apply(norm, x, "attended.norm", "projector.layer_norm")
    text = config.text_width
    x = tower.linear(x, "up", "projector.feed_forward.linear_in", (width, text), biased=False)
    x = tower.builder.add(Activation("gelu_tanh"), x, name="activation")
    tower.linear(x, ROWS, "projector.feed_forward.linear_out", (text, text), biased=False)
    return tower.program()


class Processor(ImageProcessor):
    """One tile of the image's own form; its longer edge is the square's."""

    marker = IMAGE
    rows = ImageRows()

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, where = config, config.image_token, "preprocessor_config.json"
        self.rules = PixelRules.of(given, PixelRules("bicubic"))
        self.edge, self.least = (given.get(f"m{end}_image_size", usual)
                                 for end, usual in (("ax", 980), ("in", 336)))  # fmt: skip
        if any(type(n) is not int for n in (self.edge, self.least)) or not (
            0 < self.least <= self.edge <= LONGEST
        ):
            what = f"edges of {self.least!r} to {self.edge!r} pixels"
            raise FormatError(what, where=where)
        if given.get("split_image", False) is not False:
            raise UnsupportedError("split_image: parts of an image", where=where)
        self.most = (self.edge // config.patch_size) ** 2
        self.count = next((rows for count, rows in config.queries if count == self.most), 0)
        if self.edge % config.patch_size or not self.count:
            what = f"max_image_size {self.edge}: no number of rows for so many patches"
            raise UnsupportedError(what, where=where)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize by the longer edge; patches that have none of the image are left out."""
        config, size = self.config, self.config.patch_size
        height, width = self.fitted_size(*pixels.shape[:2])
        fitted = resize(pixels, height, width, self.rules.filter)
        down, across = -(-height // size), -(-width // size)
        fitted = np.pad(fitted, [(0, down * size - height), (0, across * size - width), (0, 0)])
        places = [places_of(count, config.side) for count in (down, across)]
        numbers = (places[0][:, None] * config.side + places[1]).reshape(-1)
        cut = patches(self.rules.values(fitted), size)
        squares, supplied = resampler.squares_and_last(self.count, len(cut))
        tile = Tile(cut, {PLACE: numbers}, squares, supplied=supplied)
        return PreparedImage((tile,), IMAGE * self.count)

    def fitted_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size whose longer edge is the square's, the other one of a least length."""
        scale = self.edge / max(height, width)
        if width >= height:
            return max(int(height * scale), self.least), self.edge
        return self.edge, max(int(width * scale), self.least)
