"""OPT: learned positions, LayerNorms, a plain MLP, biases everywhere but in the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, Embedding, LayerNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, activation, attention
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("opt",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={"activation_function": "hidden_act", "ffn_dim": "intermediate_size"},
    harmless=frozenset({"dropout", "layerdrop"}),
    only={
        "do_layer_norm_before": True, "layer_norm_elementwise_affine": True,
        "_remove_final_layer_norm": False,
    },
)  # fmt: skip
NAMES = Names(
    folder={"model.norm.": "model.decoder.final_layer_norm.", "model.": "model.decoder."},
    fused=(FusedTensor("model.embed_positions", ("model.positions",), skipped=2),),
)
EPS = 1e-5
TENSORS: Mapping[str, str] = {**ATTENTION, "o": "out_proj.weight", "o_bias": "out_proj.bias"}
FEED_FORWARD: Mapping[str, str] = {
    "up": "fc1.weight", "up_bias": "fc1.bias", "down": "fc2.weight", "down_bias": "fc2.bias",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Activated(BaseConfig):
    """Fields of configurations with OPT's blocks."""

    tie_word_embeddings: bool = True
    hidden_act: str = "gelu"


@dataclass(frozen=True, kw_only=True)
class Config(Activated):
    """Fields of `OPTConfig`; embeddings are as wide as the model but in OPT-350M."""

    hidden_act: str = "relu"
    enable_bias: bool = True
    word_embed_proj_dim: int | None = None


def build(config: Config, context: int) -> Program:
    """Build the trunk; the table of positions begins with two rows that stand for padding."""
    width = config.hidden_size
    if config.word_embed_proj_dim not in (None, width):
        what = f"word_embed_proj_dim is {config.word_embed_proj_dim}: a table of another width"
        raise UnsupportedError(what, where="config")
    return trunk(config, context, "opt", biased=config.enable_bias)


def trunk(
    config: Activated, context: int, family: str, *, biased: bool = True, multiplier: float = 1.0
) -> Program:
    """Build a trunk of OPT's blocks, whose table `model.positions` has a row for each position.

    Parameters
    ----------
    multiplier : of the token's row.

    Raises
    ------
    FormatError : heads that do not share the model's width.
    """
    width, act = config.hidden_size, activation(config.hidden_act)
    if width % config.num_attention_heads:
        raise FormatError(f"{config.num_attention_heads} heads share {width}", where="config")
    decoder = Decoder(config, context, family=family, norm=LayerNorm(width, EPS))
    mixer = attention(config, biased=biased, output_biased=biased)
    mlp = MLP(width, config.intermediate_size, act, biased)
    builder, table = decoder.builder, {"table": "model.positions.weight"}
    positions = Embedding(config.max_position_embeddings, width)
    where = builder.add(positions, decoder.position, name="place", weights=table)
    x = builder.add(decoder.residual, decoder.embed(multiplier), where, name="placed")
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, table=TENSORS, before="self_attn_layer_norm")
        x = decoder.feed_forward(
            x, n, mlp, tensors="", table=FEED_FORWARD, before="final_layer_norm"
        )
    return decoder.finish(x)
