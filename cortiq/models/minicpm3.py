"""MiniCPM 3: latent attention, and factors on embedding, branches and logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.models.config import Amount, Keys
from cortiq.models.mla import JOINT, LatentConfig, latent_attention, names_of
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("minicpm3",)
KEYS = Keys(
    same_as={"head_dim": "qk_rope_head_dim"},
    gguf={
        "attention.key_length": "qk_head_dim",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.q_lora_rank": "q_lora_rank",
        "rope.dimension_count": "qk_rope_head_dim",
    },
)
NAMES = Names(
    gguf={
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": "attn_kv_b",
    },
    fused=(JOINT,),
)


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig):
    """Fields of `MiniCPM3Config`; GGUF files do not hold the factors, which are always these."""

    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    mlp_bias: bool = False
    kv_lora_rank: int = 256
    q_lora_rank: int | None = 768
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 32
    v_head_dim: Amount = Amount(0)
    scale_emb: float = 12.0
    scale_depth: float | None = 1.4
    dim_model_base: float | None = 256.0

    def resolved(self) -> Config:
        """Return the configuration with optional sizes filled in."""
        value = self.v_head_dim or Amount(self.hidden_size // self.num_attention_heads)
        nope = self.qk_nope_head_dim
        if self.source == "gguf" and self.qk_head_dim:
            nope = self.qk_head_dim - self.qk_rope_head_dim
        return replace(self, v_head_dim=value, qk_nope_head_dim=nope)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    config = config.resolved()
    layers, width = config.num_hidden_layers, config.hidden_size
    depth = math.sqrt(layers) if config.scale_depth is None else config.scale_depth
    decoder = Decoder(
        config, context, family="minicpm3", eps=config.rms_norm_eps,
        residual=depth / math.sqrt(layers),
    )  # fmt: skip
    mixer = latent_attention(config, rope_table(config, context), pairing="half")
    mlp, names = gated_mlp(config, config.hidden_act, config.mlp_bias), names_of(config)
    x = decoder.embed(config.scale_emb)
    for n in range(layers):
        x = decoder.mixer(x, n, mixer, table=names)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x, multiplier=(config.dim_model_base or width) / width)
