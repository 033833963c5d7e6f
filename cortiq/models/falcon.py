"""Falcon: attention and a plain MLP side by side, q, k and v in one matrix, rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.gpt_neox import FEED_FORWARD, TENSORS
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("falcon", "RefinedWeb", "RefinedWebModel")
GGUF = ("falcon",)
KEYS = Keys(
    aliases={
        "activation": "hidden_act", "ffn_hidden_size": "intermediate_size",
        "n_head": "num_attention_heads", "n_head_kv": "num_key_value_heads",
        "n_layer": "num_hidden_layers", "num_kv_heads": "num_key_value_heads",
    },
    harmless=frozenset({"apply_residual_connection_post_layernorm"}),
    only={"alibi": False},
    gguf={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
    gguf_only={"tensor_data_layout": "jploski"},
    gguf_tensors={"new_decoder_architecture": "blk.0.attn_norm_2.weight"},
)  # fmt: skip
QKV = ("self_attention.q", "self_attention.k", "self_attention.v")
NAMES = Names(
    folder={
        "model.embed_tokens.": "word_embeddings.", "model.layers.": "h.", "model.norm.": "ln_f.",
    },
    gguf={
        "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
        "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down", "ln_mlp": "attn_norm",
        "ln_attn": "attn_norm_2",
    },
    fused=(FusedTensor("self_attention.query_key_value", QKV),),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `FalconConfig`; an MLP is four times as wide as the model unless the file says so.

    Attributes
    ----------
    new_decoder_architecture : Falcon 40B's: groups of queries, and always branches side by side.
    multi_query : one key and value head, of the older ones.
    parallel_attn : the branches stand side by side.
    num_ln_in_parallel_attn : 2 for a norm of each branch; by default with the newer architecture.
    """

    intermediate_size: Amount = Amount(0)
    tie_word_embeddings: bool = True
    hidden_act: str = "gelu"
    layer_norm_epsilon: float = 1e-5
    bias: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    num_ln_in_parallel_attn: int | None = None

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        grouped = self.new_decoder_architecture or not self.multi_query
        return self.num_key_value_heads or self.num_attention_heads if grouped else 1

    def norms(self) -> tuple[str, str | None]:
        """Return the norms of attention and of the MLP; None where it reads attention's row."""
        split = self.new_decoder_architecture and self.num_ln_in_parallel_attn is None
        if not self.parallel_attn:
            return "input_layernorm", "post_attention_layernorm"
        if split or self.num_ln_in_parallel_attn == 2:
            return "ln_attn", "ln_mlp"
        return "input_layernorm", None


def build(config: Config, context: int) -> Program:
    """Build the trunk; GGUF files hold all queries, then all keys, then all values."""
    width, biased = config.hidden_size, config.bias
    if width % config.num_attention_heads:
        raise FormatError(f"{config.num_attention_heads} heads share {width}", where="config")
    decoder = Decoder(
        config, context, family="falcon", norm=LayerNorm(width, config.layer_norm_epsilon)
    )
    mixer = attention(
        config, rope=rope_table(config, context), biased=biased, output_biased=biased,
        joint=config.source != "gguf",
    )  # fmt: skip
    inner = config.intermediate_size or 4 * width
    mlp = MLP(width, inner, activation(config.hidden_act), biased)
    first, second = config.norms()
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        read = decoder.norm(x, f"layers.{n}.norm", f"model.layers.{n}.{first}")
        other = x if config.parallel_attn else None
        x = decoder.mixer(
            x, n, mixer, tensors="self_attention", table=TENSORS, before=None, read=read
        )
        x = decoder.feed_forward(
            x, n, mlp, table=FEED_FORWARD, before=second, read=other if second else read
        )
    return decoder.finish(x)
