"""Qwen2.5-Omni's sight: Qwen2.5-VL's tower, whose q, k and v are matrices of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.models.names import Names
from cortiq.vision import qwen2_5_vl
from cortiq.vision.qwen2_5_vl import Config, build

ARCHITECTURES = ("qwen2_5_omni_thinker",)
KEYS, NAMES = qwen2_5_vl.KEYS, Names()
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "thinker.")
    for theirs, mine in qwen2_5_vl.PREFIXES.items()
}
__all__ = ["Config", "build"]
IMAGE_ID = 151655


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    token = whole.get("image_token_index", whole.get("image_token_id", IMAGE_ID))
    return qwen2_5_vl.values({**whole, "image_token_id": token})


class Processor(qwen2_5_vl.Processor):
    """Qwen2.5-VL's, with another token."""

    marker = "<|IMAGE|>"
