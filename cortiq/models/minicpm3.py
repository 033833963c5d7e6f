"""MiniCPM 3: latent attention, and factors on embedding, branches and logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import LatentAttention
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, gated_mlp
from cortiq.models.pieces import Fused
from cortiq.models.rope import rope_table, yarn_scale

ARCHITECTURES = ("minicpm3",)
KEYS = Keys(
    harmless=frozenset({"auto_map"}),
    only={"attention_bias": False},
    gguf={
        "attention.key_length": "qk_head_dim",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.q_lora_rank": "q_lora_rank",
        "rope.dimension_count": "qk_rope_head_dim",
    },
)
LATENT: Mapping[str, str] = {
    "q": "q_proj.weight", "q_a": "q_a_proj.weight", "q_a_norm": "q_a_layernorm.weight",
    "kv_a": "kv_a_proj_with_mqa.weight", "kv_a_norm": "kv_a_layernorm.weight",
    "k_b": "k_b_proj.weight", "v_b": "v_b_proj.weight", "o": "o_proj.weight",
}  # fmt: skip
"""Roles of `LatentAttention` to tensor names, for queries without a latent."""
COMPRESSED: Mapping[str, str] = {**LATENT, "q": "q_b_proj.weight"}
HEADS_OF_KV = Fused(
    "self_attn.kv_b_proj", ("self_attn.k_b_proj", "self_attn.v_b_proj"), ("self_attn.k_b_proj",)
)
"""kv_b holds a head's key rows, then its value rows; the absorbed form takes the keys turned."""
NAMES = Names(
    gguf={
        "self_attn.q_a_proj": "attn_q_a",
        "self_attn.q_a_layernorm": "attn_q_a_norm",
        "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": "attn_kv_b",
    },
    fused=(HEADS_OF_KV,),
)
LATENT_EPS = 1e-6
"""Of the norms of the latents, whatever `rms_norm_eps` says."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MiniCPM3Config`; GGUF files do not hold the factors, which are always these."""

    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    mlp_bias: bool = False
    kv_lora_rank: int = 256
    q_lora_rank: int | None = 768
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 32
    qk_head_dim: int | None = None
    v_head_dim: int | None = None
    scale_emb: float = 12.0
    scale_depth: float | None = 1.4
    dim_model_base: float | None = 256.0

    @property
    def head_width(self) -> int:
        """What RoPE turns of a head: all of the rotary part."""
        return self.qk_rope_head_dim

    @property
    def nope_width(self) -> int:
        """What it does not turn; GGUF files give the sum of the two."""
        if self.source == "gguf" and self.qk_head_dim:
            return self.qk_head_dim - self.qk_rope_head_dim
        return self.qk_nope_head_dim

    @property
    def value_width(self) -> int:
        """Width of a value head."""
        return self.v_head_dim or self.hidden_size // self.num_attention_heads

    def check(self) -> None:
        """Raise `FormatError` where sizes that say the same thing twice differ."""
        whole = self.nope_width + self.qk_rope_head_dim
        pairs = {
            "num_key_value_heads": (self.kv_heads, self.num_attention_heads),
            "head_dim": (self.head_dim or self.qk_rope_head_dim, self.qk_rope_head_dim),
            "qk_head_dim": (self.qk_head_dim or whole, whole),
        }
        for name, (said, meant) in pairs.items():
            if said != meant or self.nope_width <= 0:
                message = f"{name} is {said}, but the heads make it {meant}"
                raise FormatError(message, where="config")


def build(config: Config, context: int) -> Program:
    """The trunk."""
    config.check()
    layers, width = config.num_hidden_layers, config.hidden_size
    depth = math.sqrt(layers) if config.scale_depth is None else config.scale_depth
    residual, rope = depth / math.sqrt(layers), rope_table(config, context)
    decoder = Decoder(
        config, context, family="minicpm3", eps=config.rms_norm_eps, residual=residual
    )
    mixer = LatentAttention(
        width, config.num_attention_heads, config.kv_lora_rank, config.nope_width,
        config.qk_rope_head_dim, config.value_width, LATENT_EPS,
        scale=(config.nope_width + config.qk_rope_head_dim) ** -0.5 * yarn_scale(rope),
        rope=rope, pairing="half", query_latent=config.q_lora_rank or 0,
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    table = COMPRESSED if config.q_lora_rank else LATENT
    x = decoder.embed(config.scale_emb)
    for n in range(layers):
        x = decoder.mixer(x, n, mixer, table=table)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x, multiplier=(config.dim_model_base or width) / width)
