"""Bamba: Mamba-2 with attention in some layers, half of every head rotated, and an MLP in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.models.config import Keys
from cortiq.models.granitemoehybrid import GLOBAL, LINEAR, MAMBA, MambaConfig
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("bamba",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={"layers_block_type": "layer_types"},
    harmless=frozenset({"mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient"}),
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(MambaConfig):
    """Fields of `BambaConfig`; layers of `attn_layer_indices` attend."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    attn_layer_indices: tuple[int, ...] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    default_turned: ClassVar[float] = 0.5

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer."""
        if self.layer_types is not None:
            return super().kinds()
        layers, attend = range(self.num_hidden_layers), self.attn_layer_indices or ()
        return tuple(GLOBAL if n in attend else LINEAR for n in layers)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="bamba", eps=config.rms_norm_eps)
    biased = config.attention_bias
    attend = attention(
        config, rope=rope_table(config, context), biased=biased, output_biased=biased
    )
    mamba, mlp = config.mamba(), gated_mlp(config, config.hidden_act, config.mlp_bias)
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        if kind == LINEAR:
            x = decoder.mixer(x, n, mamba, name="mamba", tensors="mamba", table=MAMBA)
        else:
            x = decoder.mixer(x, n, attend)
        x = decoder.feed_forward(x, n, mlp, tensors="feed_forward", before="pre_ff_layernorm")
    return decoder.finish(x, norm="model.final_layernorm")
