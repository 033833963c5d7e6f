"""Configurations of towers: the object `vision_config`, and keys of the whole folder's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.models.config import BaseConfig
from cortiq.models.sense_values import TEXT as TEXT
from cortiq.models.sense_values import sense_values

SIGHT = "vision_config"


@dataclass(frozen=True, kw_only=True)
class VisionConfig(BaseConfig):
    """Fields that every tower has.

    Attributes
    ----------
    text_width : width of the text model's rows. image_token : id of the rows of images.
    """

    vocab_size: int = 1
    text_width: int
    image_token: int
    num_channels: int = 3
    patch_size: int
    image_size: int

    @property
    def patch_width(self) -> int:
        """Values of a patch."""
        return self.num_channels * self.patch_size**2

    @property
    def side(self) -> int:
        """Patches along a side of an image."""
        return self.image_size // self.patch_size


def sight_values(whole: Mapping[str, Any], *kept: str, **renamed: str) -> dict[str, Any]:
    """Return the tower's keys of a folder's config.json, as `sense_values` does."""
    return sense_values(whole, SIGHT, *kept, **renamed)
