"""Configurations of towers: the object `vision_config`, and keys of the whole folder's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError
from cortiq.models.config import BaseConfig

SIGHT, TEXT = "vision_config", "text_config"
FROM_TEXT = "text_width"
"""Field that holds the text model's `hidden_size`."""


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
    """Return the tower's keys of a folder's config.json, and those that it has at the top.

    Parameters
    ----------
    kept : keys of the top. renamed : field, and the key of the top that it has the value of; the
        first of several, with commas between, that is there.
    """
    sight, text = whole.get(SIGHT), whole.get(TEXT, whole)
    if not isinstance(sight, Mapping) or not isinstance(text, Mapping):
        raise FormatError(f"has no {SIGHT}", where="config.json")
    values = {**sight, FROM_TEXT: text.get("hidden_size")}
    values |= {key: whole[key] for key in kept if key in whole}
    for field, keys in renamed.items():
        found = [whole[key] for key in keys.split(",") if whole.get(key) is not None]
        values |= {field: found[0]} if found else {}
    return values
