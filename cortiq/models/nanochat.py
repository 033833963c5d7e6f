"""nanochat: norms without weights, the embedding's too; heads turned backwards, then normed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.ir.layers import MLP, QKNorm, RMSNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("nanochat",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names()
FEED_FORWARD: Mapping[str, str] = {"up": "fc1.weight", "down": "fc2.weight"}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `NanoChatConfig`."""

    rms_norm_eps: float = 1e-6
    hidden_act: str = "relu2"
    attention_bias: bool = False
    final_logit_softcapping: float | None = 15.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    norm = RMSNorm(config.hidden_size, config.rms_norm_eps, weighted=False)
    decoder = Decoder(config, context, family="nanochat", norm=norm)
    mixer = attention(
        config, rope=replace(rope_table(config, context), inverse=True),
        qk_norm=QKNorm(config.rms_norm_eps, after_rope=True, weighted=False),
        biased=config.attention_bias, output_biased=config.attention_bias,
    )  # fmt: skip
    mlp = MLP(config.hidden_size, config.intermediate_size, activation(config.hidden_act))
    x = decoder.norm(decoder.embed(), "embed.norm", "")
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD)
    return decoder.finish(x, soft_cap=config.final_logit_softcapping)
