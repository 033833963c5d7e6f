"""GPT-NeoX and Pythia: attention and a plain MLP in parallel, q, k and v in one matrix by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("gpt_neox", "gptneox")
GGUF = ("gptneox",)
KEYS = Keys(
    aliases={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
    gguf={
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "use_parallel_residual": "use_parallel_residual",
    },
)
QKV = ("attention.q", "attention.k", "attention.v")
NAMES = Names(
    folder={
        "model.embed_tokens.": "gpt_neox.embed_in.", "model.layers.": "gpt_neox.layers.",
        "model.norm.": "gpt_neox.final_layer_norm.", "lm_head.": "embed_out.",
    },
    gguf={
        "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output",
        "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    },
    fused=(FusedTensor("attention.query_key_value", QKV),),
    unread=r"gpt_neox\.layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",
)  # fmt: skip
TENSORS: Mapping[str, str] = {
    "qkv": "query_key_value.weight", "qkv_bias": "query_key_value.bias",
    **{role: f"{role}.weight" for role in "qkv"},
    **{f"{role}_bias": f"{role}.bias" for role in "qkv"},
    "o": "dense.weight", "o_bias": "dense.bias",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    "up": "dense_h_to_4h.weight", "up_bias": "dense_h_to_4h.bias",
    "down": "dense_4h_to_h.weight", "down_bias": "dense_4h_to_h.bias",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `GPTNeoXConfig`."""

    layer_norm_eps: float = 1e-5
    hidden_act: str = "gelu"
    attention_bias: bool = True
    use_parallel_residual: bool = True
    default_turned: ClassVar[float] = 0.25


def build(config: Config, context: int) -> Program:
    """Build the trunk; GGUF files hold all queries, then all keys, then all values."""
    width, biased = config.hidden_size, config.attention_bias
    if width % config.num_attention_heads:
        raise FormatError(f"{config.num_attention_heads} heads share {width}", where="config")
    norm = LayerNorm(width, config.layer_norm_eps)
    decoder = Decoder(config, context, family="gpt_neox", norm=norm)
    mixer = attention(
        config, rope=rope_table(config, context), biased=biased, output_biased=biased,
        joint=config.source != "gguf",
    )  # fmt: skip
    mlp = MLP(width, config.intermediate_size, activation(config.hidden_act), True)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        before = x if config.use_parallel_residual else None
        x = decoder.mixer(x, n, mixer, tensors="attention", table=TENSORS)
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD, read=before)
    return decoder.finish(x)
