"""Ministral 3: Llama's blocks; queries grow with the position, so that far scores keep apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys, convert_config
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import BETA, grown_table, rope_table

ARCHITECTURES = ("ministral3", "mistral3")
GGUF = ("mistral3",)
KEYS = Keys(
    gguf={
        "attention.temperature_scale": "temperature_scale",
        "rope.scaling.yarn_log_multiplier": "yarn_log_multiplier",
    },
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Ministral3Config`."""

    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    sliding_window: int | None = None
    default_theta: ClassVar[float] = 1000000.0


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files, which have numbers of the rotary table apart."""

    temperature_scale: float = 0.0
    yarn_log_multiplier: float = 0.0

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form; llama.cpp takes `mscale` for 1."""
        rope = dict(self.rope_parameters) | {BETA: self.temperature_scale}
        if self.yarn_log_multiplier and rope["rope_type"] == "yarn":
            rope |= {"mscale": 1.0, "mscale_all_dim": self.yarn_log_multiplier}
        return convert_config(Config, self, where, rope_parameters=rope)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="ministral3", eps=config.rms_norm_eps)
    rope = rope_table(config, context)
    mixer = attention(
        config, rope=rope, window=config.sliding_window, query_rope=grown_table(config, rope),
        pairing="interleaved" if config.source == "gguf" else "half",
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
