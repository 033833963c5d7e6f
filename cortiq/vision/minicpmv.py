"""MiniCPM-V 2.6, 4.0 and 4.5: SigLIP's tower, and a fixed number of rows that attend to patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import PLACE, ROWS
from cortiq.ir.layers import Embedding, LayerNorm, Linear, Residual
from cortiq.models.config import Amount, Keys
from cortiq.models.names import Names
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.contract import Floats
from cortiq.numerics.pixels import Pixels, patches
from cortiq.numerics.rope import RopeTable
from cortiq.vision import resampler
from cortiq.vision.config import sight_values
from cortiq.vision.image import Tile
from cortiq.vision.positions import nearest_places
from cortiq.vision.siglip import SiglipConfig, layer, placed
from cortiq.vision.slices import SliceProcessor
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("minicpmv",)
KEYS = Keys(harmless=frozenset({"vision_use_head", "attention_dropout"}))
QKV = ("projector.attn.q", "projector.attn.k", "projector.attn.v")
NAMES = Names(
    fused=(
        FusedTensor("projector.attn.in_proj", QKV),
        FusedTensor("projector.proj", ("projector.out",), swapped=("projector.out",)),
    ),
    unread=r"projector\.pos_embed(_k)?|vision\.head\..*",
)
PREFIXES: Mapping[str, str] = {
    "vpm.": "vision.", "resampler.attn.in_proj_": "projector.attn.in_proj.",
    "resampler.attn.out_proj.": "projector.attn.o.", "resampler.proj": "projector.proj.weight",
    "resampler.": "projector.",
}  # fmt: skip
TOKEN = "<unk>"
"""Token of the rows of images."""
EPS, HEAD, BASE = 1e-6, 128, 10000.0
"""Of the projector's norms, values of a head of its attention, and base of its positions."""
WHERE = "where"
"""Input: what positions add to a patch's key."""


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `MiniCPMVConfig`, and of its tower's.

    Attributes
    ----------
    query_num : rows of the text model that a slice becomes.
    drop_vision_last_layer : the file has a last layer that is not computed.
    """

    image_size: int = 980
    patch_size: int = 14
    query_num: Amount = Amount(64)
    drop_vision_last_layer: bool = False


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return sight_values(whole, "query_num", "drop_vision_last_layer", image_token="image_token_id")


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for tiles of at most so many patches."""
    text = config.text_width
    if text % HEAD or not config.query_num:
        what = f"{config.query_num} rows of {text} values, in heads of {HEAD}"
        raise FormatError(what, where="config")
    tower, eps = Tower(config, most, "minicpmv"), config.layer_norm_eps
    x = placed(tower, config)
    for n in range(config.num_hidden_layers - config.drop_vision_last_layer):
        x = layer(tower, config, x, n)
    x = tower.apply(LayerNorm(config.hidden_size, eps), x, "normed", "vision.post_layernorm")
    if config.hidden_size != text:
        x = tower.linear(x, "wide", "projector.kv_proj", (config.hidden_size, text), biased=False)
    x = tower.apply(LayerNorm(text, EPS), x, HIDDEN, "projector.ln_kv")
    where = tower.builder.input(WHERE, (text,), "f32")
    key = tower.builder.add(Residual(), x, where, name="key.placed")
    resampler.stored(tower, key, x, text, text // HEAD, "projector.attn")
    tower.finish()
    _resampled(tower, config.query_num, text)
    return tower.program()


def _resampled(tower: Tower, rows: int, width: int) -> None:
    """Write the rows of the text model: learned queries that attend to all patches of the tile."""
    norm, table = LayerNorm(width, EPS), {"table": "projector.query"}
    x = tower.builder.add(Embedding(rows, width), tower.position, name="query", weights=table)
    x = tower.apply(norm, x, "query.norm", "projector.ln_q")
    x = resampler.resampled(tower, x, width, width // HEAD, "projector.attn")
    x = tower.apply(norm, x, "resampled.norm", "projector.ln_post")
    tower.apply(Linear(width, width, False), x, ROWS, "projector.out")


def sines(down: int, across: int, width: int) -> Floats:
    """Return what each place of a grid adds to its key: [places, width].

    Sines, then cosines of width/4 angles p·10000^(−i/(width/4)) of the column, then those of the
    row.
    """
    table = RopeTable(BASE, width // 2)
    rows, columns = (np.hstack(table.compute(np.arange(n))[::-1]) for n in (down, across))
    return np.hstack([np.tile(columns, (down, 1)), np.repeat(rows, across, axis=0)])


class Processor(SliceProcessor):
    """The whole image, and slices of a large one; each becomes the same number of rows."""

    config: Config
    marker, place, between = "(<image>./</image>)", TOKEN, "\n"

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        rows = given.get("image_feature_size", config.query_num)
        if rows != config.query_num:
            what = f"image_feature_size {rows!r}, {config.query_num} rows of the projector"
            raise UnsupportedError(what, where="preprocessor_config.json")
        names = {"image_mean": given.get("norm_mean"), "image_std": given.get("norm_std")}
        super().__init__(config, {**names, **given}, 1)

    def tile(self, pixels: Pixels) -> Tile:
        """Return a part of the image as its patches, which each row sees all of."""
        config, size = self.config, self.config.patch_size
        down, across = (n // size for n in pixels.shape[:2])
        cut, count = patches(self.rules.values(pixels), size), config.query_num
        inputs = {
            PLACE: nearest_places(down, across, config.side),
            WHERE: sines(down, across, config.text_width),
        }
        squares, supplied = resampler.squares_and_last(count, len(cut))
        return Tile(cut, inputs, squares, supplied=supplied)
