"""Sarvam 105B: DeepSeek V3's latent attention and experts, in keys of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cortiq.models import deepseek_v3
from cortiq.models.config import Amount, Keys

ARCHITECTURES = ("sarvam_mla",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={
        "num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers", "num_shared_experts": "n_shared_experts",
        "q_head_dim": "qk_head_dim",
    },
    same_as=deepseek_v3.KEYS.same_as,
    only=deepseek_v3.KEYS.only,
)  # fmt: skip
NAMES = deepseek_v3.NAMES
build = deepseek_v3.build
OWN_YARN = "deepseek_yarn"


@dataclass(frozen=True, kw_only=True)
class Config(deepseek_v3.Config):
    """Fields of `SarvamMLAConfig`."""

    num_key_value_heads: int | None = None
    q_lora_rank: int | None = None
    n_routed_experts: int = 128
    n_group: int = 1
    topk_group: int = 1
    first_k_dense_replace: Amount = Amount(1)
    family: ClassVar[str] = "sarvam_mla"


def values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a folder.

    The published one calls YaRN by another name, and a head what a cache of latent rows holds.
    """
    found, rope = dict(config), config.get("rope_scaling")
    latent, turned = (config.get(key) for key in ("kv_lora_rank", "qk_rope_head_dim"))
    both = isinstance(latent, int) and isinstance(turned, int)
    if both and config.get("head_dim") == (latent or 0) + (turned or 0):
        del found["head_dim"]
    if isinstance(rope, Mapping) and OWN_YARN in (rope.get("type"), rope.get("rope_type")):
        found["rope_scaling"] = {**rope, **dict.fromkeys({"type", "rope_type"} & set(rope), "yarn")}
    return found
