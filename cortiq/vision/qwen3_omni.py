"""Qwen3-Omni's sight: Qwen3-VL's tower under other names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from cortiq.models.config import Keys
from cortiq.vision import qwen3_vl
from cortiq.vision.qwen3_vl import NAMES, Config, Processor

ARCHITECTURES = ("qwen3_omni_moe_thinker",)
KEYS = Keys(
    harmless=qwen3_vl.KEYS.harmless | {"tokens_per_second"}, only={"apply_vit_abs_pos_embed": True}
)
PREFIXES: Mapping[str, str] = {
    f"{start}{theirs}": mine
    for start in ("", "thinker.")
    for theirs, mine in {**qwen3_vl.PREFIXES, "visual.merger_list.": "deep."}.items()
}
build = partial(qwen3_vl.build, merger=("ln_q", "mlp.0", "mlp.2"))
__all__ = ["NAMES", "Config", "Processor"]
IMAGE_ID = 151655


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    named = {"model_type": "qwen3_vl", "image_token_id": whole.get("image_token_id", IMAGE_ID)}
    return qwen3_vl.values({**whole, **named})
