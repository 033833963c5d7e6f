"""LLaVA 1.5: a layer of CLIP's tower without its class row, through two matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import PLACE, SQUARE
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import Embedding, LayerNorm, Residual
from cortiq.ir.ops import Concat
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.numerics.contract import F32
from cortiq.numerics.pixels import Pixels, patches
from cortiq.vision.config import SIGHT, sight_values
from cortiq.vision.fit import SquareFit
from cortiq.vision.image import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    ImageProcessor,
    PixelRules,
    PreparedImage,
    Tile,
)
from cortiq.vision.siglip import SiglipConfig, layer
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("llava",)
TOWER = "clip_vision_model"
KEYS = Keys(harmless=frozenset({"projection_dim", "image_seq_length", "initializer_factor"}))
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (
        ("vision_tower.vision_model.", "vision."), ("vision_tower.", "vision."),
        ("multi_modal_projector.", "projector."), ("image_newline", "projector.newline"),
    )
}  # fmt: skip
IMAGE = "<image>"
CLASS = "class"
"""Input: 0 for the row that stands for the whole image, 1 for patches."""
KEPT = ("projector_hidden_act", "multimodal_projector_bias", "vision_feature_select_strategy",
        "vision_feature_layer")  # fmt: skip
"""Keys of the whole folder's config.json."""


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `LlavaConfig` and of its tower, a `CLIPVisionConfig`.

    Attributes
    ----------
    vision_feature_layer : layers that each row that is read has passed.
    """

    patch_size: int = 32
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    projector_hidden_act: str = "gelu"
    multimodal_projector_bias: bool = True
    vision_feature_select_strategy: str = "default"
    vision_feature_layer: tuple[int, ...] = (11,)
    image_grid_pinpoints: tuple[tuple[int, ...], ...] = ()

    @property
    def first_row(self) -> int:
        """First row of the tower that the projector reads: 1 without the class row."""
        return 1 if self.vision_feature_select_strategy == "default" else 0


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    found = tower_values(whole, "image_grid_pinpoints")
    kind = found.get("model_type", TOWER)
    if kind != TOWER:
        raise UnsupportedError(f"a tower {kind!r}, not {TOWER!r}", where=SIGHT)
    return found


def tower_values(whole: Mapping[str, Any], *kept: str, layers: int = 12) -> dict[str, Any]:
    """Return the keys of a tower whose rows are read after layers that the folder names.

    Parameters
    ----------
    kept : further keys of the top. layers : of the tower, unless the folder says.
    """
    found = sight_values(whole, *KEPT, *kept, image_token="image_token_index,image_token_id")
    count, read = found.get("num_hidden_layers", layers), found.pop("vision_feature_layer", -2)
    read = read if isinstance(read, Sequence) else [read]
    if type(count) is not int or any(type(n) is not int for n in read):
        raise FormatError(f"vision_feature_layer {read} of {count!r} layers", where="config.json")
    passed = tuple(n if n >= 0 else count + 1 + n for n in read)
    return {
        "image_token": 32000,
        "vision_feature_layer": passed,
        "num_hidden_layers": count,
    } | found


def checked_layers(config: Any) -> tuple[int, ...]:
    """Return how many layers each row that is read has passed; FormatError if there are fewer."""
    read: tuple[int, ...] = config.vision_feature_layer
    if not read or max(read) > config.num_hidden_layers:
        what = f"vision_feature_layer {list(read)} of {config.num_hidden_layers} layers"
        raise FormatError(what, where="config")
    return read


def layers_after(config: Any, layers: str) -> str:
    """Return a regular expression of the tensors of layers after the last that is read."""
    last = max(config.vision_feature_layer, default=0)
    left = "|".join(map(str, range(last, config.num_hidden_layers)))
    return rf"{layers}\.({left or '$^'})\..*"


def NAMES(config: Config) -> Names:
    """Return the names; layers after the last that is read are no part of the graph."""
    after = layers_after(config, r"vision\.encoder\.layers")
    return Names(unread=rf"vision\.post_layernorm\..*|{after}")


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for tiles of at most so many patches."""
    return tower_of(config, most, "llava").program()


def tower_of(config: Config, most: int, family: str) -> Tower:
    """Write the tower and a projector."""
    strategy = config.vision_feature_select_strategy
    if strategy not in ("default", "full"):
        raise UnsupportedError(f"vision_feature_select_strategy {strategy!r}", where="config")
    read = checked_layers(config)
    tower, width = Tower(config, most, family), config.hidden_size
    norm = LayerNorm(width, config.layer_norm_eps)
    x = tower.patches("vision.embeddings.patch_embedding", biased=False)
    x = tower.marked(x, "vision.embeddings.class_embedding", CLASS)
    weights = {"table": "vision.embeddings.position_embedding.weight"}
    table, place = Embedding(config.side**2 + 1, width), tower.builder.input(PLACE)
    where = tower.builder.add(table, place, name="place.row", weights=weights)
    x = tower.builder.add(Residual(), x, where, name="placed")
    passed = [tower.apply(norm, x, "normed", "vision.pre_layrnorm")]
    for n in range(max(read)):
        passed.append(layer(tower, config, passed[-1], n))
    tower.builder.add(Concat(), *(passed[n] for n in read), name=HIDDEN)
    tower.finish()
    inner = width * len(read)
    square = tower.builder.input(SQUARE, (inner,), "f32")
    sizes, act = (inner, config.text_width), config.projector_hidden_act
    tower.two_layers(square, act, sizes, config.multimodal_projector_bias)
    return tower


class Processor(ImageProcessor):
    """One tile: the image's middle, in the tower's square."""

    marker = IMAGE
    rows = ImageRows()

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, self.most = config, config.image_token, config.side**2 + 1
        default = PixelRules("bicubic", CLIP_MEAN, CLIP_DEVIATION, size={"shortest_edge": 224})
        self.rules = PixelRules.of(given, default)
        self.fit = SquareFit(self.rules, given, config.image_size)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize, and cut the middle out."""
        tile = self.tile(self.fit.fitted(pixels))
        return PreparedImage((tile,), IMAGE * len(tile.squares))

    def tile(self, pixels: Pixels) -> Tile:
        """Return a square of the tower's size as its patches, after a row for the whole."""
        config = self.config
        cut = patches(self.rules.values(pixels), config.patch_size)
        cut = np.concatenate([np.zeros((1, cut.shape[1]), F32), cut])
        count = np.arange(len(cut), dtype=np.int32)
        inputs = {PLACE: count, CLASS: np.minimum(count, 1)}
        return Tile(cut, inputs, np.arange(config.first_row, len(cut))[:, None])
