"""Kimi-VL: the tower of Kimi K2.5, of still images, and its projector under other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.vision import kimi_k25
from cortiq.vision.image import CLIP_DEVIATION, CLIP_MEAN
from cortiq.vision.kimi_k25 import Config

ARCHITECTURES = ("kimi_vl",)
KEYS, NAMES, ORDERS = kimi_k25.KEYS, kimi_k25.NAMES, kimi_k25.ORDERS
build, values = kimi_k25.build, kimi_k25.values
__all__ = ["Config"]
PREFIXES: Mapping[str, str] = {
    **{name: own for name, own in kimi_k25.PREFIXES.items() if own != "projector."},
    "multi_modal_projector.linear_1.": "projector.proj.0.",
    "multi_modal_projector.linear_2.": "projector.proj.2.",
    "multi_modal_projector.": "projector.",
}
LIMIT, EDGE = 4096, 511
"""Patches of an image, and of an edge, at most."""


class Processor(kimi_k25.Processor):
    """As Kimi K2.5's; an image with an edge of more patches than the tower takes is shrunk."""

    def __init__(self, config: Config, given: Mapping[str, Any]) -> None:
        if not given.get("pad_input", False):
            hint = "set pad_input to true in preprocessor_config.json"
            raise UnsupportedError(
                "images that are cut to whole squares", where="config", hint=hint
            )
        rules = {"image_mean": CLIP_MEAN, "image_std": CLIP_DEVIATION, **given}
        limits = {"max_patches": given.get("in_token_limit", LIMIT), "size": {"max_height": EDGE}}
        super().__init__(config, rules | limits)
