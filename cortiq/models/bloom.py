"""BLOOM: ALiBi in place of positions, LayerNorms, the embedding's too, q, k and v in one matrix."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.alibi import alibi_slopes
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.gpt_neox import FEED_FORWARD, TENSORS
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("bloom",)
KEYS = Keys(
    aliases={
        "n_embed": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers", "seq_length": "max_position_embeddings",
    },
    harmless=frozenset({
        "attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion",
        "offset_alibi", "pretraining_tp", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact",
    }),
    gguf={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
)  # fmt: skip
QKV = ("self_attention.q", "self_attention.k", "self_attention.v")
NAMES = Names(
    folder={
        "model.embed_tokens.": "word_embeddings.", "model.layers.": "h.", "model.norm.": "ln_f.",
        "model.embed_norm.": "word_embeddings_layernorm.",
    },
    gguf={
        "model.embed_norm": "token_embd_norm", "self_attention.query_key_value": "attn_qkv",
        "self_attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
    },
    fused=(FusedTensor("self_attention.query_key_value", QKV),),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `BloomConfig`; an MLP is four times as wide as the model.

    Attributes
    ----------
    apply_residual_connection_post_layernorm : branches are added to the row after its norm.
    """

    intermediate_size: Amount = Amount(0)
    tie_word_embeddings: bool = True
    layer_norm_epsilon: float = 1e-5
    apply_residual_connection_post_layernorm: bool = False


def build(config: Config, context: int) -> Program:
    """Build the trunk; GGUF files hold all queries, then all keys, then all values."""
    width, heads = config.hidden_size, config.num_attention_heads
    if width % heads:
        raise FormatError(f"{heads} heads share {width}", where="config")
    norm = LayerNorm(width, config.layer_norm_epsilon)
    decoder = Decoder(config, context, family="bloom", norm=norm)
    mixer = attention(
        config, biased=True, output_biased=True, slopes=alibi_slopes(heads),
        joint=config.source != "gguf",
    )  # fmt: skip
    mlp = MLP(width, config.intermediate_size or 4 * width, "gelu_tanh", True)
    x = decoder.norm(decoder.embed(), "embed.norm", "model.embed_norm")
    normed = config.apply_residual_connection_post_layernorm
    first, second = "input_layernorm", "post_attention_layernorm"
    for n in range(config.num_hidden_layers):
        if normed:
            x = decoder.norm(x, f"layers.{n}.norm", f"model.layers.{n}.{first}")
        x = decoder.mixer(
            x, n, mixer, tensors="self_attention", table=TENSORS, before=None if normed else first
        )
        if normed:
            x = decoder.norm(x, f"layers.{n}.second_norm", f"model.layers.{n}.{second}")
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD, before=None if normed else second)
    return decoder.finish(x)
