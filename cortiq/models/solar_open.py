"""Solar Open: Llama's attention; GLM 4.5's experts in every layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.models.config import Amount, Keys
from cortiq.models.glm4_moe import GroupedExperts
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("solar_open",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(only={"first_k_dense_replace": 0, "use_qk_norm": False})
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(GroupedExperts):
    """Fields of `SolarOpenConfig`; no layer has an MLP of `intermediate_size`."""

    intermediate_size: Amount = Amount(0)
    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    moe_intermediate_size: int = 1280
    default_theta: ClassVar[float] = 1000000.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="solar_open", eps=config.rms_norm_eps)
    mixer = attention(config, rope=rope_table(config, context), biased=config.attention_bias)
    experts = config.experts()
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, experts, table=MOE)
    return decoder.finish(x)
