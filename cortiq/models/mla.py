"""Multi-head latent attention in checkpoints: names, the joint matrix, YaRN's scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir.layers import LatentAttention
from cortiq.models.config import BaseConfig
from cortiq.models.rope import yarn_scale
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.rope import RopeTable

EPS = 1e-6
"""Of the norms of latents, whatever the others of the model have."""

JOINT = FusedTensor(
    "self_attn.kv_b_proj", ("self_attn.k_b", "self_attn.v_b"), swapped=("self_attn.k_b",)
)
"""Every head's rows of keys and of values; the absorbed form takes those of keys transposed."""

LATENT: Mapping[str, str] = {
    "kv_a": "kv_a_proj_with_mqa.weight", "kv_a_bias": "kv_a_proj_with_mqa.bias",
    "kv_a_norm": "kv_a_layernorm.weight", "k_b": "k_b.weight", "v_b": "v_b.weight",
    "q_a": "q_a_proj.weight", "q_a_bias": "q_a_proj.bias", "q_a_norm": "q_a_layernorm.weight",
    "o": "o_proj.weight", "o_bias": "o_proj.bias",
}  # fmt: skip


LATENT_GGUF: Mapping[str, str] = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.k_b": "attn_k_b", "self_attn.v_b": "attn_v_b",
}  # fmt: skip
"""Tensors of latent attention, as GGUF files call them."""


@dataclass(frozen=True, kw_only=True)
class LatentConfig(BaseConfig):
    """Fields of configurations with latent attention; a head is what is rotated and what is not."""

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    kv_lora_rank: int = 512
    q_lora_rank: int | None = 1536
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    qk_head_dim: int | None = None
    v_head_dim: int = 128

    @property
    def head_width(self) -> int:
        """Values of a head that are rotated."""
        return self.qk_rope_head_dim


def latent_attention(
    config: LatentConfig, rope: RopeTable | None, pairing: str = "interleaved"
) -> LatentAttention:
    """Return a layer's attention.

    Raises
    ------
    FormatError : fields that contradict each other.
    """
    width = config.qk_nope_head_dim + config.qk_rope_head_dim
    rules = {
        f"heads of {config.qk_head_dim} elements, not {width}": config.qk_head_dim in (None, width),
        f"{config.kv_heads} key heads for {config.num_attention_heads} heads": config.kv_heads
        == config.num_attention_heads,
    }
    for what, holds in rules.items():
        if not holds:
            raise FormatError(f"latent attention has {what}", where="config")
    return LatentAttention(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        latent=config.kv_lora_rank,
        nope_dim=config.qk_nope_head_dim,
        rope_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        eps=EPS,
        scale=width**-0.5 * (yarn_scale(rope) if rope else 1.0),
        rope=rope,
        pairing=pairing,
        query_latent=config.q_lora_rank or 0,
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )


def names_of(config: LatentConfig) -> dict[str, str]:
    """Return tensor names by role of `LatentAttention`, with or without compressed queries."""
    query = "q_b_proj.weight" if config.q_lora_rank else "q_proj.weight"
    return {**LATENT, "q": query}
