"""GPT-2: learned positions, LayerNorms, biases everywhere, matrices stored transposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program, Value
from cortiq.ir.layers import MLP, Embedding, LayerNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("gpt2",)
KEYS = Keys(
    aliases={
        "activation_function": "hidden_act", "n_embd": "hidden_size", "n_head":
        "num_attention_heads", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers",
        "n_positions": "max_position_embeddings",
    },
    same_as={"n_ctx": "max_position_embeddings"},
    harmless=frozenset({
        "reorder_and_upcast_attn", "summary_activation", "summary_proj_to_labels", "summary_type",
        "summary_use_proj",
    }),
    only={"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
    gguf={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
)  # fmt: skip
POSITIONS = "model.positions.weight"
QKV = ("attn.q", "attn.k", "attn.v")
TRANSPOSED = ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")
FOLDER = Names(
    fused=(
        FusedTensor("attn.c_attn", QKV, QKV),
        *(FusedTensor(name, (name,), (name,)) for name in TRANSPOSED),
    ),
    folder={
        "model.embed_tokens.": "wte.", "model.positions.": "wpe.", "model.layers.": "h.",
        "model.norm.": "ln_f.",
    },
    unread=r"h\.\d+\.attn\.(masked_)?bias",
)  # fmt: skip
FILE = Names(
    fused=(FusedTensor("attn.c_attn", QKV),),
    gguf={
        "model.positions": "position_embd", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
)  # fmt: skip
"""Names in GGUF files, whose matrices are not transposed."""
ATTENTION: Mapping[str, str] = {
    **{role: f"{role}.weight" for role in "qkv"},
    **{f"{role}_bias": f"{role}.bias" for role in "qkv"},
    "o": "c_proj.weight", "o_bias": "c_proj.bias",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    "up": "c_fc.weight", "up_bias": "c_fc.bias", "down": "c_proj.weight",
    "down_bias": "c_proj.bias",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `GPT2Config`; an MLP is four times as wide as the model unless the file says so."""

    intermediate_size: Amount = Amount(0)
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True
    hidden_act: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5

    @property
    def inner(self) -> int:
        """Width within an MLP."""
        return self.intermediate_size or 4 * self.hidden_size


def NAMES(config: BaseConfig) -> Names:
    """Return the tensors' names."""
    return FILE if config.source == "gguf" else FOLDER


def placed(decoder: Decoder, config: Config) -> Value:
    """Write the embedding and the position's row of a table, added.

    Raises
    ------
    FormatError : heads that do not share the model's width.
    """
    width, builder = config.hidden_size, decoder.builder
    if width % config.num_attention_heads:
        raise FormatError(f"{config.num_attention_heads} heads share {width}", where="config")
    op, table = Embedding(config.max_position_embeddings, width), {"table": POSITIONS}
    where = builder.add(op, decoder.position, name="place", weights=table)
    return builder.add(decoder.residual, decoder.embed(), where, name="placed")


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
    decoder = Decoder(config, context, family="gpt2", norm=norm)
    mixer = attention(config, biased=True, output_biased=True)
    mlp = MLP(config.hidden_size, config.inner, activation(config.hidden_act), biased=True)
    x = placed(decoder, config)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, tensors="attn", table=ATTENTION, before="ln_1")
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD, before="ln_2")
    return decoder.finish(x)
