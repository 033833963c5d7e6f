"""MiniCPM-V 4.6: SigLIP's tower, in which squares of four patches become one below the last layers.

MiniCPM-OCR is the same without these squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program, Value
from cortiq.ir.encoders import LAST, PLACE, ROWS, SHARES, SQUARE
from cortiq.ir.layers import Attention, LayerNorm, Linear, ListedBlocks, Residual
from cortiq.ir.ops import Activation, CombineExperts, Reshape
from cortiq.models.config import Amount, Keys
from cortiq.models.names import Names
from cortiq.models.parts import named
from cortiq.numerics.pixels import Pixels, grouped, patches
from cortiq.vision.config import sight_values
from cortiq.vision.image import Stage, Tile
from cortiq.vision.positions import nearest_places
from cortiq.vision.siglip import ATTENTION, SiglipConfig, layer, placed
from cortiq.vision.slices import SliceProcessor
from cortiq.vision.tower import HIDDEN, Tower

ARCHITECTURES = ("minicpmv4_6", "minicpm_ocr")
KEYS = Keys(
    harmless=frozenset({"vision_use_head"}),
    only={"drop_vision_last_layer": False, "window_kernel_size": [2, 2],
          "merge_kernel_size": [2, 2]},
)  # fmt: skip
NAMES = Names(unread=r"vision\.vit_merger\..*")
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}.": mine
    for start in ("", "model.")
    for theirs, mine in (("vision_tower", "vision."), ("merger", "projector."))
}
SIDE = 2
"""Rows along the side of a square."""
LISTED = "listed"
"""Input: the square of a patch."""
EPS = 1e-6
DETAILED = "4x"
"""Value of `downsample_mode` for a tower without squares."""
KEPT = ("downsample_mode", "merger_times", "insert_layer_id", "drop_vision_last_layer",
        "merge_kernel_size")  # fmt: skip
OCR = {"downsample_mode": DETAILED}


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `MiniCPMV4_6Config`, and of its tower's.

    Attributes
    ----------
    insert_layer_id : the layer whose rows are the last ones of patches. merger_times : how often
        four rows of the tower become one in the projector.
    """

    image_size: int = 980
    patch_size: int = 14
    insert_layer_id: Amount = Amount(6)
    downsample_mode: str = "16x"
    merger_times: int = 1

    @property
    def detailed(self) -> bool:
        """Whether no squares become rows inside the tower."""
        return self.downsample_mode == DETAILED

    @property
    def merges(self) -> int:
        """Count how many times squares of four become one row."""
        return self.merger_times + (not self.detailed)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    own = OCR if whole.get("model_type") == "minicpm_ocr" else {}
    return {**own, **sight_values(whole, *KEPT, image_token="image_token_id")}


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for tiles of at most so many patches."""
    if config.downsample_mode not in ("16x", DETAILED):
        raise UnsupportedError(f"downsample_mode {config.downsample_mode!r}", where="config")
    if not 0 <= config.insert_layer_id < config.num_hidden_layers:
        what = f"insert_layer_id {config.insert_layer_id} of {config.num_hidden_layers} layers"
        raise FormatError(what, where="config")
    tower, width = Tower(config, most, "minicpmv4_6"), config.hidden_size
    x, norm = placed(tower, config), LayerNorm(width, config.layer_norm_eps)
    stages = 0
    for n in range(config.num_hidden_layers):
        x = layer(tower, config, x, n)
        if n == config.insert_layer_id and not config.detailed:
            _attended(tower, config, x)
            tower.finish()
            x, stages = _merged(tower, config), 1
    tower.apply(norm, x, HIDDEN, "vision.post_layernorm")
    tower.finish_stage(stages)
    for n in range(config.merger_times - 1):
        _downsampled(tower, config, n, HIDDEN, width)
        tower.finish_stage(stages + n + 1)
    _downsampled(tower, config, config.merger_times - 1, ROWS, config.text_width)
    return tower.program()


def _attended(tower: Tower, config: Config, x: Value) -> None:
    """Write the attention of patches to those of their square: the last rows of patches."""
    blocks, width, here = ListedBlocks(SIDE**2, 1), config.hidden_size, "vision.vit_merger"
    op = Attention(
        width, config.num_attention_heads, config.kv_heads, config.head_width,
        biased=True, output_biased=True, until=True, listed=blocks,
    )  # fmt: skip
    listed = tower.builder.input(LISTED, blocks.type.shape)
    tower.branch(
        x, op, "squares.attention",
        (LayerNorm(width, config.layer_norm_eps), f"{here}.layer_norm1"),
        named(op, f"{here}.self_attn", ATTENTION), HIDDEN, (tower.position, tower.last, listed),
    )  # fmt: skip


def _merged(tower: Tower, config: Config) -> Value:
    """Write the row of a square: the mean of its rows, and a small network of all of them."""
    b, width, here = tower.builder, config.hidden_size, "vision.vit_merger"
    count = SIDE**2
    square, shares = b.input(SQUARE, (count, width), "f32"), b.input(SHARES, (count,), "f32")
    tower.last = b.input(LAST)
    mean = b.add(CombineExperts(), shares, square, name="square.mean")
    x = b.add(Reshape((count * width,)), square, name="square.row")
    x = tower.apply(LayerNorm(count * width, config.layer_norm_eps), x, "square.norm",
                    f"{here}.pre_norm")  # fmt: skip
    sizes = (count * width, count * config.intermediate_size)
    x = tower.linear(x, "square.up", f"{here}.linear_1", sizes, biased=True)
    x = b.add(Activation("gelu_tanh"), x, name="square.activation")
    x = tower.linear(x, "square.down", f"{here}.linear_2", (sizes[1], width), biased=True)
    return b.add(Residual(), x, mean, name="square.out")


def _downsampled(tower: Tower, config: Config, n: int, out: str, width: int) -> None:
    """Write a row that a small network of the projector makes of a square."""
    inner, here = config.hidden_size * SIDE**2, f"projector.mlp.{n}"
    x = tower.builder.input(SQUARE, (inner,), "f32")
    x = tower.apply(LayerNorm(inner, EPS), x, f"mlp.{n}.norm", f"{here}.pre_norm")
    x = tower.apply(Linear(inner, inner, True), x, f"mlp.{n}.up", f"{here}.linear_1")
    x = tower.builder.add(Activation("gelu"), x, name=f"mlp.{n}.activation")
    tower.apply(Linear(inner, width, True), x, out, f"{here}.linear_2")


class Processor(SliceProcessor):
    """The whole image, and slices of a large one; each in whole squares."""

    config: Config

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        mode = given.get("downsample_mode", config.downsample_mode)
        if mode != config.downsample_mode:
            what = f"downsample_mode {mode!r} of images, {config.downsample_mode!r} of the tower"
            raise UnsupportedError(what, where="preprocessor_config.json")
        if given.get("small_image_upsize", "always") != "always":
            what = f"small_image_upsize = {given['small_image_upsize']!r}"
            raise UnsupportedError(what, where="preprocessor_config.json")
        super().__init__(config, given, SIDE**config.merges)

    def tile(self, pixels: Pixels) -> Tile:
        """Return a part of the image as its patches, by square, and the rows made of these."""
        config, size, stages = self.config, self.config.patch_size, []
        down, across = (n // size for n in pixels.shape[:2])
        cut = patches(self.rules.values(pixels), size)
        inputs = {PLACE: nearest_places(down, across, config.side)}
        if not config.detailed:
            order = grouped(down, across, SIDE)
            cut, inputs = cut[order.reshape(-1)], {PLACE: inputs[PLACE][order.reshape(-1)]}
            number = np.arange(order.size)
            inputs[LISTED] = (number // SIDE**2).astype(np.int32).reshape(-1, 1, 1)
            stages.append(Stage(number.reshape(order.shape)))
        grids = [(down // SIDE**n, across // SIDE**n) for n in range(config.merges)]
        squares = [grouped(*grid, SIDE) for grid in grids[len(stages) :]]
        stages += [Stage(one) for one in squares[:-1]]
        return Tile(cut, inputs, squares[-1], tuple(stages))
