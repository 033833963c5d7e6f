"""Sarvam 30B: GLM 4.5 whose heads are rotated whole, under names of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.models import glm4_moe
from cortiq.models.config import Amount, Keys
from cortiq.models.names import Names, other_form
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("sarvam_moe",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={
        "num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers", "num_shared_experts": "n_shared_experts",
        "use_qkv_bias": "attention_bias",
    },
)  # fmt: skip
NAMES = Names(
    forms=(
        other_form(
            (r"^model\.embed_tokens\.", "model.word_embeddings."),
            (r"\.self_attn\.o_proj\.", ".attention.dense."),
            (r"\.self_attn\.q_norm\.", ".attention.query_layernorm."),
            (r"\.self_attn\.k_norm\.", ".attention.key_layernorm."),
            (r"\.self_attn\.", ".attention."),
            (r"\.gate\.e_score_correction_bias", ".gate.expert_bias"),
        ),
    ),
    fused=(
        FusedTensor("self_attn.query_key_value", tuple(f"self_attn.{role}_proj" for role in "qkv")),
    ),
)
build = glm4_moe.build


@dataclass(frozen=True, kw_only=True)
class Config(glm4_moe.Config):
    """Fields of `SarvamMoEConfig`."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 64
    rms_norm_eps: float = 1e-6
    moe_intermediate_size: int = 1024
    num_experts_per_tok: int = 6
    routed_scaling_factor: float = 2.5
    use_qk_norm: bool = True
    num_nextn_predict_layers: Amount = Amount(0)
    default_theta: ClassVar[float] = 8000000.0
    default_turned: ClassVar[float] = 1.0
    family: ClassVar[str] = "sarvam_moe"
