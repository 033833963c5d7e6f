"""EXAONE 3, 3.5 and Deep: Llama's blocks under other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("exaone",)
KEYS = Keys(
    aliases={
        "activation_function": "hidden_act", "layer_norm_epsilon": "rms_norm_eps",
        "num_layers": "num_hidden_layers",
    },
    harmless=frozenset({"embed_dropout"}),
)  # fmt: skip
MIXER = "attn.attention"
GATED: Mapping[str, str] = {"gate": "c_fc_0", "up": "c_fc_1", "down": "c_proj"}
NAMES = Names(
    folder={
        "model.embed_tokens.": "wte.", "model.layers.": "h.", "model.norm.": "ln_f.",
    },
    gguf={
        "ln_1": "attn_norm", "ln_2": "ffn_norm", f"{MIXER}.out_proj": "attn_output",
        **{f"{MIXER}.{role}_proj": f"attn_{role}" for role in "qkv"},
        **{f"mlp.{tensor}": f"ffn_{role}" for role, tensor in GATED.items()},
    },
)  # fmt: skip
TENSORS: Mapping[str, str] = {
    **ATTENTION, "o": "out_proj.weight", "o_bias": "out_proj.bias",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    **{role: f"{tensor}.weight" for role, tensor in GATED.items()},
    **{f"{role}_bias": f"{tensor}.bias" for role, tensor in GATED.items()},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `ExaoneConfig`."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    default_theta: ClassVar[float] = 500000.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="exaone", eps=config.rms_norm_eps)
    biased = config.attention_bias
    mixer = attention(config, rope=rope_table(config, context), biased=biased, output_biased=biased)
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, tensors=MIXER, table=TENSORS, before="ln_1")
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD, before="ln_2")
    return decoder.finish(x)
