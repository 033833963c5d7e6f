"""Gemma 3: SigLIP's tower, squares of patches averaged, a norm and a matrix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.encoders import LAST, PLACE, ROWS, SHARES, SQUARE
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import RMSNorm
from cortiq.ir.ops import CombineExperts
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.pixels import Pixels, grouped, patches, resize
from cortiq.vision.config import TEXT, sight_values
from cortiq.vision.crops import PanAndScan
from cortiq.vision.image import ImageProcessor, PixelRules, PreparedImage, Tile
from cortiq.vision.siglip import SiglipConfig, siglip_tower

ARCHITECTURES = ("gemma3",)
KEYS = Keys(harmless=frozenset({"vision_use_head"}))
NAMES = Names(
    fused=(
        FusedTensor(
            "projector.mm_input_projection_weight", ("projector.projection",),
            swapped=("projector.projection",), bare=True,
        ),
    ),
    unread=r"vision\.head\..*",
)  # fmt: skip
PREFIXES: Mapping[str, str] = {
    "vision_tower.vision_model.": "vision.", "model.vision_tower.vision_model.": "vision.",
    "vision_tower.": "vision.", "model.vision_tower.": "vision.",
    "multi_modal_projector.": "projector.", "model.multi_modal_projector.": "projector.",
}  # fmt: skip
BEGIN, SOFT, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
CROPPED = (
    "Here is the original image {whole} and here are some crops to help you see better {crops}"
)
"""Text of an image that has crops."""


@dataclass(frozen=True, kw_only=True)
class Config(SiglipConfig):
    """Fields of `Gemma3Config`: rows of an image, and its tower's.

    Attributes
    ----------
    window : of the text model's layers, which holds an image's rows.
    soft_offset : added to the weights of the projector's norm; files of llama.cpp hold the sum.
    """

    mm_tokens_per_image: int = 256
    window: int = 4096
    soft_offset: float = 1.0

    @property
    def pool(self) -> int:
        """Patches along the side of a square that becomes a row."""
        return self.side // math.isqrt(self.mm_tokens_per_image)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    text = whole.get(TEXT)
    window = text.get("sliding_window", 4096) if isinstance(text, Mapping) else 4096
    return {"image_token": 262144, "window": window} | sight_values(
        whole, "mm_tokens_per_image", "soft_offset", image_token="image_token_index,image_token_id"
    )


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for tiles of at most so many patches."""
    if config.window < config.mm_tokens_per_image:
        what = f"images of {config.mm_tokens_per_image} rows in windows of {config.window}"
        raise UnsupportedError(what, where="config")
    rows = math.isqrt(config.mm_tokens_per_image)
    if rows**2 != config.mm_tokens_per_image or config.pool * rows != config.side:
        what = f"{config.side}² patches make no {config.mm_tokens_per_image} equal squares"
        raise FormatError(what, where="config")
    tower = siglip_tower(config, "gemma3", most)
    b, width, count = tower.builder, config.hidden_size, config.pool**2
    square, shares = b.input(SQUARE, (count, width), "f32"), b.input(SHARES, (count,), "f32")
    x = b.add(CombineExperts(), shares, square, name="mean")
    norm = RMSNorm(width, config.layer_norm_eps, config.soft_offset)
    x = tower.apply(norm, x, "mean.norm", "projector.mm_soft_emb_norm")
    tower.linear(x, ROWS, "projector.projection", (width, config.text_width), biased=False)
    return tower.program()


class Processor(ImageProcessor):
    """Tiles of a fixed size, the rows of each seeing one another: the image, and crops of it where
    its processor's file asks for them.
    """

    marker = BEGIN
    rows = ImageRows(last=LAST)

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        self.config, self.token, self.most = config, config.image_token, config.side**2
        self.rules = PixelRules.of(given, PixelRules("bilinear"))
        self.crops = PanAndScan.of(given)

    def prepare(self, pixels: Pixels) -> PreparedImage:
        """Prepare the image, then its crops."""
        crops = self.crops.cut(pixels) if self.crops else []
        text = one = f"\n\n{BEGIN}{SOFT * self.config.mm_tokens_per_image}{END}\n\n"
        if crops:
            text = CROPPED.format(whole=one, crops=" ".join([one] * len(crops)))
        return PreparedImage(tuple(map(self._tile, (pixels, *crops))), text)

    def _tile(self, pixels: Pixels) -> Tile:
        """Resize to the tower's square, whatever the image's form."""
        config = self.config
        fitted = resize(pixels, config.image_size, config.image_size, self.rules.filter)
        cut = patches(self.rules.values(fitted), config.patch_size)
        places = {PLACE: np.arange(len(cut), dtype=np.int32)}
        return Tile(cut, places, grouped(config.side, config.side, config.pool))
