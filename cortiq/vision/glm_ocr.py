"""GLM-OCR: GLM-4.1V's tower without learned positions, with norms of query and key heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cortiq.ir import Program
from cortiq.ir.layers import QKNorm
from cortiq.models.config import Keys
from cortiq.vision import glm4v, qwen
from cortiq.vision.qwen import Arrangement
from cortiq.vision.tower import Tower

ARCHITECTURES = ("glm_ocr",)
KEYS = Keys(harmless=glm4v.KEYS.harmless | {"image_size"})
NAMES, PREFIXES = glm4v.NAMES, glm4v.PREFIXES


@dataclass(frozen=True, kw_only=True)
class Config(glm4v.Config):
    """Fields of `GlmOcrVisionConfig`."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_attention_heads: int = 16
    attention_bias: bool = True

    @property
    def inner(self) -> int:
        """Width of the layers' MLPs."""
        return self.intermediate_size

    @property
    def merged_inner(self) -> int:
        """Width of the projector's MLP."""
        return self.text_width * self.num_channels


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return qwen.values({"image_token_id": 59280, **whole}, {})


def build(config: Config, most: int) -> Program:
    """Build tower and projector, for images of at most so many patches."""
    tower, biased = Tower(config, most, "glm_ocr"), config.attention_bias
    op = replace(qwen.rotated(config, biased), qk_norm=QKNorm(config.rms_norm_eps))
    x = tower.patches("vision.patch_embed.proj", biased=True)
    return glm4v.encoded(tower, config, x, op, biased)


class Processor(glm4v.Processor):
    """As GLM-4.1V's."""

    def arranged(self, down: int, across: int) -> Arrangement:
        """Return patches row by row; they have no places in a table."""
        return qwen.Processor.arranged(self, down, across)
