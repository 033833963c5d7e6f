"""GLM 4.7 Flash: DeepSeek V3's latent attention and experts, in GLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.models import deepseek_v3
from cortiq.models.config import Amount, Keys
from cortiq.models.layer_kinds import sparse_layers

ARCHITECTURES = ("glm4_moe_lite",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={"num_local_experts": "n_routed_experts"},
    same_as=deepseek_v3.KEYS.same_as,
    only={"partial_rotary_factor": 1.0, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
)
NAMES = deepseek_v3.NAMES
build = deepseek_v3.build


@dataclass(frozen=True, kw_only=True)
class Config(deepseek_v3.Config):
    """Fields of `Glm4MoeLiteConfig`."""

    num_key_value_heads: int | None = 20
    max_position_embeddings: int = 202752
    rms_norm_eps: float = 1e-5
    q_lora_rank: int | None = 768
    qk_nope_head_dim: int = 192
    v_head_dim: int = 256
    n_routed_experts: int = 64
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1536
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.8
    first_k_dense_replace: Amount = Amount(1)
    mlp_layer_types: tuple[str, ...] | None = None
    family: ClassVar[str] = "glm4_moe_lite"

    def sparse(self) -> tuple[bool, ...]:
        """Return whether each layer has experts."""
        if self.mlp_layer_types is None:
            return super().sparse()
        return sparse_layers(self.mlp_layer_types, self.num_hidden_layers)
