"""LFM2: gated short convolutions, with attention in some layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedMLP, QKNorm, ShortConv
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder
from cortiq.models.rope import rope_table

ARCHITECTURES = ("lfm2",)
GGUF = ("lfm2",)
KEYS = Keys(
    aliases={"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"},
    same_as={
        "block_dim": "hidden_size", "conv_dim": "hidden_size", "conv_dim_out": "hidden_size",
        "num_heads": "num_attention_heads", "block_norm_eps": "norm_eps", "theta": "rope_theta",
    },
    harmless=frozenset({
        "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init",
        "conv_use_xavier_init",
    }),
    only={"block_use_swiglu": True, "use_pos_enc": True},
    gguf={
        "attention.head_count_kv": "kv_heads_of_layers",
        "attention.layer_norm_rms_epsilon": "norm_eps", "shortconv.l_cache": "conv_L_cache",
    },
    gguf_tensors={"conv_bias": "blk.0.shortconv.conv.bias"},
)  # fmt: skip
NAMES = Names(
    gguf={
        "model.embedding_norm": "token_embd_norm",
        "operator_norm": "attn_norm",
        "ffn_norm": "ffn_norm",
        "conv.in_proj": "shortconv.in_proj",
        "conv.conv": "shortconv.conv",
        "conv.out_proj": "shortconv.out_proj",
        "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm",
        "self_attn.k_layernorm": "attn_k_norm",
        "feed_forward.w1": "ffn_gate",
        "feed_forward.w3": "ffn_up",
        "feed_forward.w2": "ffn_down",
    }
)
MIXERS: Mapping[str, str] = {
    **ATTENTION,
    "o": "out_proj.weight", "q_norm": "q_layernorm.weight", "k_norm": "k_layernorm.weight",
}  # fmt: skip
CONV: Mapping[str, str] = {
    "in": "in_proj.weight", "conv": "conv.weight", "out": "out_proj.weight",
    "in_bias": "in_proj.bias", "conv_bias": "conv.bias", "out_bias": "out_proj.bias",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {"gate": "w1.weight", "up": "w3.weight", "down": "w2.weight"}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Lfm2Config`; GGUF files give KV heads by layer, 0 for convolutions."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 128000
    tie_word_embeddings: bool = True
    norm_eps: float = 1e-5
    conv_bias: bool = False
    conv_L_cache: int = 3
    block_auto_adjust_ff_dim: bool = True
    block_ffn_dim_multiplier: float | None = 1.0
    block_multiple_of: int = 256
    full_attn_idxs: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    kv_heads_of_layers: tuple[int, ...] | None = None
    default_theta: ClassVar[float] = 1000000.0
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "kv_heads_of_layers"})

    @property
    def kv_heads(self) -> int:
        """Key and value heads of the layers that attend."""
        if self.kv_heads_of_layers is not None:
            return max(self.kv_heads_of_layers, default=0)
        return super().kv_heads

    @property
    def inner(self) -> int:
        """Width of the MLP: two thirds of what config.json says, rounded up; GGUF's is final."""
        if self.source == "gguf" or not self.block_auto_adjust_ff_dim:
            return self.intermediate_size
        inner = int(2 * self.intermediate_size / 3)
        if self.block_ffn_dim_multiplier is None:
            return inner
        inner = int(self.block_ffn_dim_multiplier * inner)
        return -(-inner // self.block_multiple_of) * self.block_multiple_of

    def attends(self) -> tuple[bool, ...]:
        """Return whether each layer is attention; the others are short convolutions."""
        layers = range(self.num_hidden_layers)
        kinds: tuple[bool | None, ...]
        if self.kv_heads_of_layers is not None:
            kinds = tuple(heads > 0 for heads in self.kv_heads_of_layers)
        elif self.layer_types is not None:
            known = {"full_attention": True, "conv": False}
            kinds = tuple(known.get(kind) for kind in self.layer_types)
        else:
            wanted = layers if self.full_attn_idxs is None else self.full_attn_idxs
            kinds = tuple(n in wanted for n in layers)
        if len(kinds) != len(layers) or None in kinds:
            message = f"does not say for {len(layers)} layers which are full_attention or conv"
            raise FormatError(message, where="layer_types")
        return tuple(bool(kind) for kind in kinds)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, eps = config.hidden_size, config.norm_eps
    decoder = Decoder(config, context, family="lfm2", eps=eps)
    conv = ShortConv(width, config.conv_L_cache, config.conv_bias)
    attention = Attention(
        width=width,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(config, context),
        qk_norm=QKNorm(eps),
    )
    mlp = GatedMLP(width, config.inner)
    x = decoder.embed()
    for n, attends in enumerate(config.attends()):
        if attends:
            x = decoder.mixer(x, n, attention, table=MIXERS, before="operator_norm")
        else:
            x = decoder.mixer(
                x, n, conv, name="conv", tensors="conv", table=CONV, before="operator_norm"
            )
        x = decoder.feed_forward(
            x, n, mlp, tensors="feed_forward", table=FEED_FORWARD, before="ffn_norm"
        )
    return decoder.finish(x, norm="model.embedding_norm")
