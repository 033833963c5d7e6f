"""Whisper: a decoder that attends to the rows of an encoder of sound; learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError
from cortiq.ir import Program, Value
from cortiq.ir.encoded import ENCODED, LAST_ENCODED, EncodedRows
from cortiq.ir.layers import MLP, Embedding, LayerNorm, Linear
from cortiq.ir.ops import Quantise, Reshape, StoreKV
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.opt import EPS, FEED_FORWARD, TENSORS
from cortiq.models.parts import Decoder, activation, attention, named

ARCHITECTURES = ("whisper",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={
        "activation_function": "hidden_act", "d_model": "hidden_size",
        "decoder_attention_heads": "num_attention_heads", "decoder_ffn_dim": "intermediate_size",
        "decoder_layers": "num_hidden_layers", "max_target_positions": "max_position_embeddings",
    },
    harmless=frozenset({
        "activation_dropout", "alignment_heads", "apply_spec_augment", "classifier_proj_size",
        "decoder_layerdrop", "dropout", "encoder_layerdrop", "forced_decoder_ids",
        "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "mask_time_length",
        "mask_time_min_masks", "mask_time_prob", "median_filter_width",
    }),
    only={
        "is_encoder_decoder": True, "scale_embedding": False, "use_weighted_layer_sum": False,
    },
)  # fmt: skip
NAMES = Names(
    folder={
        "model.norm.": "model.decoder.layer_norm.", "lm_head.": "proj_out.",
        "model.positions.": "model.decoder.embed_positions.", "model.": "model.decoder.",
    },
    unread=r"model\.encoder\..*",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `WhisperConfig`; those of the encoder have its name."""

    tie_word_embeddings: bool = True
    hidden_act: str = "gelu"
    num_mel_bins: int = 80
    max_position_embeddings: int = 448
    max_source_positions: int = 1500
    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int


def values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a folder, in which `num_hidden_layers` repeats the encoder's layers."""
    return {key: value for key, value in config.items() if key != "num_hidden_layers"}


def build(config: Config, context: int) -> Program:
    """Build the trunk, and the entry that stores keys and values of the encoder's rows."""
    width, eps = config.hidden_size, EPS
    if width % config.num_attention_heads:
        raise FormatError(f"{config.num_attention_heads} heads share {width}", where="config")
    decoder = Decoder(config, context, family="whisper", norm=LayerNorm(width, eps))
    builder, table = decoder.builder, {"table": "model.positions.weight"}
    builder.facts[ENCODED] = EncodedRows(config.max_source_positions, width)
    last = builder.input(LAST_ENCODED)
    positions = Embedding(config.max_position_embeddings, width)
    where = builder.add(positions, decoder.position, name="place", weights=table)
    x = builder.add(decoder.residual, decoder.embed(), where, name="placed")
    own = attention(config, biased=("q", "v"), output_biased=True)
    mlp = MLP(width, config.intermediate_size, activation(config.hidden_act), biased=True)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, own, table=TENSORS, before="self_attn_layer_norm")
        x = _crossed(decoder, x, n, last)
        x = decoder.feed_forward(
            x, n, mlp, tensors="", table=FEED_FORWARD, before="final_layer_norm"
        )
    program = decoder.finish(x)
    _stored(decoder, config)
    return program


def _crossed(decoder: Decoder, x: Value, n: int, last: Value) -> Value:
    """Write the attention to the encoder's rows."""
    file, here = f"model.layers.{n}", f"layers.{n}"
    op = attention(
        decoder.config, biased=("q",), output_biased=True, shares_kv=True, until=True
    )  # fmt: skip
    return decoder.branch(
        x, op, f"{here}.cross", before=f"{file}.encoder_attn_layer_norm",
        weights=named(op, f"{file}.encoder_attn", TENSORS), slots={"kv": f"{here}.cross.kv"},
        out=f"{here}.crossed", others=(last,),
    )  # fmt: skip


def _stored(decoder: Decoder, config: Config) -> None:
    """Write the entry of the encoder's rows, one a position."""
    b, heads, dim = decoder.builder, config.num_attention_heads, config.head_width
    b.input("position")
    row = b.input(ENCODED, (config.hidden_size,), "f32")
    for n in range(config.num_hidden_layers):
        here, codes = f"layers.{n}.cross", []
        for role in "kv":
            tensor = f"model.layers.{n}.encoder_attn.{role}_proj"
            op = Linear(config.hidden_size, heads * dim, role == "v")
            weights = {part: f"{tensor}.{part}" for part in op.weight_shapes()}
            y = b.add(op, row, name=f"{here}.{role}", weights=weights)
            y = b.add(Reshape((heads, dim)), y, name=f"{here}.{role}.heads")
            codes.append(b.add(Quantise(), y, name=f"{here}.{role}.codes"))
        slots = {"kv": f"{here}.kv"}
        b.add_node(StoreKV(heads, dim, dim), *codes, name=f"{here}.store", slots=slots)
    b.graph(ENCODED, ())
