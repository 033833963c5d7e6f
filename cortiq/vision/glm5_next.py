"""GLM 5 Next: GLM-OCR's tower with clamped gates; images have black at their edges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir.images import ImageRows
from cortiq.ir.layers import Gating
from cortiq.models.parts import activation
from cortiq.numerics.pixels import Pixels, resize
from cortiq.vision import glm_ocr, qwen

ARCHITECTURES = ("glm5_next",)
KEYS, NAMES, PREFIXES = glm_ocr.KEYS, glm_ocr.NAMES, glm_ocr.PREFIXES
build = glm_ocr.build
LIMITS = (16, 8000)
"""Rows of an image at least and at most, unless the processor's file says."""
MOST = 1 << 17
"""Rows of an image that a file may ask for at most."""


@dataclass(frozen=True, kw_only=True)
class Config(glm_ocr.Config):
    """Fields of `Glm5NextVisionConfig`.

    Attributes
    ----------
    projection_intermediate_size : width of the projector's MLP. swiglu_limit : bound of gates and
        of what they multiply.
    """

    projection_intermediate_size: int = 10240
    swiglu_limit: float = 10.0

    @property
    def merged_inner(self) -> int:
        """Width of the projector's MLP."""
        return self.projection_intermediate_size

    @property
    def gating(self) -> Gating:
        """Activation of the MLPs, or a way of joining with more options."""
        return Gating(activation(self.hidden_act), limit=self.swiglu_limit)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return qwen.values({"image_token_id": 154854, **whole}, {})


class Processor(glm_ocr.Processor):
    """One tile of the image's own form; black is added to whole squares."""

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        where = "preprocessor_config.json"
        pairs = zip(("min_image_tokens", "max_image_tokens"), LIMITS, strict=True)
        self.counts = [given.get(name, usual) for name, usual in pairs]
        least, largest = self.counts
        if not all(type(n) is int for n in self.counts) or not 0 < least <= largest <= MOST:
            raise FormatError(f"images of {least!r} to {largest!r} rows", where=where)
        if (expand := given.get("patch_expand_factor", 1)) != 1:
            raise UnsupportedError(f"patch_expand_factor {expand!r}", where=where)
        square = (config.patch_size * config.spatial_merge_size) ** 2
        limits = {"min_pixels": least * square, "max_pixels": largest * square}
        super().__init__(config, {**given, **limits})

    def supplied(self) -> ImageRows:
        """Return what the trunk's rows supply: nothing, as they have one position each."""
        return ImageRows()

    def fitted(self, pixels: Pixels) -> Pixels:
        """Shrink to the limits, or enlarge a small image, and add black below and to the right."""
        height, width, _ = pixels.shape
        down, across = self.fitted_size(height, width)
        scale = min(down / height, across / width)
        if height * width >= self.least:
            scale = min(1.0, scale)
        height, width = (
            max(1, min(limit, math.floor(edge * scale)))
            for edge, limit in ((height, down), (width, across))
        )
        image = resize(pixels, height, width, self.rules.filter)
        more = [(0, down - height), (0, across - width), (0, 0)]
        return np.pad(image, more)

    def fitted_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size in whole squares that an image is put into."""
        down, across = self._squares(height, width)
        if down * across < self.counts[0]:
            scale = math.sqrt(self.least / (height * width))
            down, across = self._squares(math.ceil(height * scale), math.ceil(width * scale))
        if down * across > self.counts[1]:
            down, across = self._within(height, width)
        return down * self.factor, across * self.factor

    def _squares(self, height: int, width: int) -> tuple[int, int]:
        """Return how many squares along each edge an image takes."""
        return -(-height // self.factor), -(-width // self.factor)

    def _within(self, height: int, width: int) -> tuple[int, int]:
        """Return the squares of the largest image of this form that takes no more than it may, of
        one if all take more.
        """
        low, high, best = 1, height, (1, 1)
        while low <= high:
            middle = (low + high) // 2
            down, across = self._squares(middle, max(1, math.floor(width * middle / height)))
            if down * across <= self.counts[1]:
                low, best = middle + 1, (down, across)
            else:
                high = middle - 1
        return best
