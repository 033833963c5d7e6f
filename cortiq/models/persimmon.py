"""Persimmon: LayerNorms, of query and key heads too; q, k and v by head; squared ReLUs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm, QKNorm
from cortiq.models import gpt_neox
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("persimmon",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names(
    folder={"model.norm.": "model.final_layernorm."},
    fused=tuple(
        dataclasses.replace(
            fused,
            tensor=fused.tensor.replace("attention.", "self_attn."),
            parts=tuple(part.replace("attention.", "self_attn.") for part in fused.parts),
        )
        for fused in gpt_neox.NAMES.fused
    ),
)
TENSORS = {
    **gpt_neox.TENSORS,
    **{f"{role}_norm": f"{role}_layernorm.weight" for role in "qk"},
    **{f"{role}_norm_bias": f"{role}_layernorm.bias" for role in "qk"},
}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `PersimmonConfig`."""

    max_position_embeddings: int = 16384
    layer_norm_eps: float = 1e-5
    hidden_act: str = "relu2"
    qk_layernorm: bool = True
    default_turned: ClassVar[float] = 0.5


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, eps = config.hidden_size, config.layer_norm_eps
    if width % config.num_attention_heads:
        raise FormatError(f"{config.num_attention_heads} heads share {width}", where="config")
    decoder = Decoder(config, context, family="persimmon", norm=LayerNorm(width, eps))
    mixer = attention(
        config, rope=rope_table(config, context), biased=True, output_biased=True, joint=True,
        qk_norm=QKNorm(eps, centred=True) if config.qk_layernorm else None,
    )  # fmt: skip
    mlp = MLP(width, config.intermediate_size, activation(config.hidden_act), True)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, table=TENSORS)
        x = decoder.feed_forward(x, n, mlp, table=gpt_neox.FEED_FORWARD)
    return decoder.finish(x)
