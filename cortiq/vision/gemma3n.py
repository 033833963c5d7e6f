"""Gemma 3n's sight: MobileNet V5, squares of pixels averaged, and rows of the images' vocabulary.

The token that ends an image is of that vocabulary, so that its row is computed here, and not looked
up in the text model's table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing.gemma3n import KINDS, WORD, soft_or_hard
from cortiq.ir import Program
from cortiq.ir.encoders import SHARES, SQUARE
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import RMSNorm
from cortiq.ir.ops import CombineExperts, Scale
from cortiq.models.config import Amount, Keys
from cortiq.models.names import Names
from cortiq.numerics.contract import Floats
from cortiq.numerics.pixels import Pixels, resize
from cortiq.vision.config import VisionConfig, sight_values
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Stage, Tile
from cortiq.vision.mobilenet import EPS, THERE, MobileNetWriter
from cortiq.vision.mobilenet_blocks import (
    ATTENTION,
    FUSION,
    KERNELS,
    KEYS_BLOCK,
    SHRINK,
    STEM,
    STEM_BLOCK,
    STEM_KERNEL,
    Block,
    computed_kernels,
    read_blocks,
    windows_of,
)
from cortiq.vision.tower import Tower
from cortiq.vision.windows import pixel_numbers, stem_patches, window_rows

ARCHITECTURES = ("gemma3n",)
KEYS = Keys(
    harmless=frozenset({"do_pooling", "label_names", "num_classes"}),
    only={"architecture": "mobilenetv5_300m_enc", "model_args": None},
)
NAMES = Names(unread=KERNELS + r"\.weight")
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "model.")
    for theirs, mine in (("vision_tower.timm_model.", "vision."), ("embed_vision.", "projector."))
}
IMAGE, BEGIN, END = "<image_soft_token>", "<start_of_image>", "<end_of_image>"
WHERE = "preprocessor_config.json"


@dataclass(frozen=True, kw_only=True)
class Config(VisionConfig):
    """Fields of `Gemma3nVisionConfig`, and what the text model does with an image's rows.

    Attributes
    ----------
    soft_tokens : rows of an image. end_token : id behind them.
    blocks, stem, fusion : of the tower, channels of its first map, and between the matrices of the
        fusion: from the tensors.
    """

    hidden_size: int = 2048
    intermediate_size: int = 1
    num_hidden_layers: int = 1
    num_attention_heads: int = 1
    patch_size: int = 2 * STEM_BLOCK
    image_size: int = 768
    vocab_size: int = 128
    vocab_offset: int = 262144
    rms_norm_eps: float = 1e-6
    soft_tokens: int = 256
    end_token: int = 262144
    blocks: tuple[Block, ...] = ()
    stem: Amount = Amount(0)
    fusion: Amount = Amount(0)
    not_in_json = VisionConfig.not_in_json | {"blocks", "stem", "fusion", "image_size"}

    @property
    def word(self) -> int:
        """Token of the images' vocabulary behind an image."""
        return self.end_token - self.vocab_offset


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    found = sight_values(
        whole, image_token="image_token_id", end_token="eoi_token_id",
        soft_tokens="vision_soft_tokens_per_image",
    )  # fmt: skip
    return {"image_token": 262145, **found}


def with_tensors(config: Config, checkpoint: Checkpoint) -> Config:
    """Return the configuration with what the tensors say: the tower's blocks."""
    sizes = {}
    for name in (f"{STEM}.conv.weight", f"{FUSION}.ffn.pw_exp.conv.weight"):
        if name not in checkpoint:
            raise FormatError("is missing", where=name)
        sizes[name] = Amount(checkpoint.info(name).shape[0])
    stem, fusion = sizes.values()
    blocks = read_blocks(checkpoint)
    return replace(config, blocks=blocks, stem=stem, fusion=fusion, num_hidden_layers=len(blocks))


def computed(config: Config, checkpoint: Checkpoint) -> dict[str, Floats]:
    """Return tensors that are computed of the folder's: kernels whose windows are gathered."""
    return computed_kernels(checkpoint, config.blocks)


def pooled(config: Config, most: int) -> int:
    """Return the pixels along the side of a square that becomes a row.

    Parameters
    ----------
    most : rows of the first entry.

    Raises
    ------
    FormatError : no equal squares make so many rows.
    """
    rows, side = math.isqrt(config.soft_tokens), math.isqrt(most) // KEYS_BLOCK
    if rows**2 != config.soft_tokens or side % rows:
        what = f"{side}² pixels of the last map make no {config.soft_tokens} equal squares"
        raise FormatError(what, where="config")
    return side // rows


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images that are so many rows of the first entry."""
    if not 0 <= config.word < config.vocab_size:
        what = f"the token {config.word} of {config.vocab_size} that stand for images"
        raise FormatError(what, where="config")
    width, count = config.hidden_size, pooled(config, most) ** 2
    tower = Tower(config, most, "gemma3n")
    fused = config.fusion, width
    MobileNetWriter(tower, config.blocks).write(config.num_channels, config.stem, fused)
    b = tower.builder
    square, shares = b.input(SQUARE, (count, width), "f32"), b.input(SHARES, (count,), "f32")
    x = b.add(CombineExperts(), shares, square, name="mean")
    x = tower.apply(RMSNorm(width, EPS), x, "mean.norm", f"{FUSION}.norm")
    x = b.add(Scale(width**0.5), x, name="mean.scaled")
    soft_or_hard(b, config, x)
    return tower.program()


class Processor(ImageProcessor):
    """One tile of a fixed size, whatever the image's form."""

    marker = IMAGE
    config: Config

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, self.ends = config, config.image_token, (config.end_token,)
        self.rows = ImageRows(token=0)  # which all ids past the table of per-layer inputs are
        default = PixelRules("bicubic", size={"height": config.image_size,
                                              "width": config.image_size})  # fmt: skip
        if given.get("do_normalize") is False:
            plain = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
            given = {k: v for k, v in given.items() if k != "do_normalize"} | plain
        self.rules = PixelRules.of(given, default)
        height, width = self.rules.size.get("height"), self.rules.size.get("width")
        if not height or height != width or height % SHRINK:
            what = f"images of {height} × {width} pixels, not of equal multiples of {SHRINK}"
            raise UnsupportedError(what, where=WHERE)
        if given.get("image_seq_length", config.soft_tokens) != config.soft_tokens:
            what = f"image_seq_length {given['image_seq_length']}: the model has"
            raise FormatError(f"{what} {config.soft_tokens} rows of an image", where=WHERE)
        self.edge, self.most = height, (height // config.patch_size) ** 2

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Resize to the tower's square."""
        config = self.config
        fitted = resize(pixels, self.edge, self.edge, self.rules.filter)
        cut = stem_patches(self.rules.values(fitted), STEM_KERNEL, STEM_BLOCK)
        stages, side = [], self.edge // 2
        for block, window in windows_of(config.blocks):
            squares, there = window_rows(window, side)
            stages.append(Stage(squares, {THERE: there}, window.below**2))
            side //= 1 if block.kind == ATTENTION else window.stride
        pool, soft = pooled(config, self.most), config.soft_tokens
        numbers = pixel_numbers(self.edge // SHRINK * KEYS_BLOCK, KEYS_BLOCK)
        rows = len(numbers) // pool
        mine = numbers.reshape(rows, pool, rows, pool).transpose(0, 2, 1, 3).reshape(soft, -1)
        squares = np.concatenate([mine, mine[:1]])
        own = np.arange(soft + 1) < soft
        words = np.full(soft + 1, config.word, np.int32)
        kinds = np.stack([own, ~own], axis=1).astype(np.float32)
        tile = Tile(cut, {}, squares, tuple(stages), {WORD: words, KINDS: kinds}, KEYS_BLOCK**2)
        return PreparedImage((tile,), f"\n\n{BEGIN}{IMAGE * soft}{END}\n\n")
