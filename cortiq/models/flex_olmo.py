"""FlexOlmo: OLMo 2's blocks with OLMoE's experts in place of the MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.models import olmo2, olmoe
from cortiq.models.config import Keys
from cortiq.models.parts import MOE, Decoder
from cortiq.models.rope import rope_table

ARCHITECTURES = ("flex_olmo",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(aliases={"num_local_experts": "num_experts"})
NAMES = olmo2.NAMES


@dataclass(frozen=True, kw_only=True)
class Config(olmoe.Config):
    """Fields of `FlexOlmoConfig`."""

    rms_norm_eps: float = 1e-6
    num_experts: int = 7
    num_experts_per_tok: int = 5
    default_theta: ClassVar[float] = 500000.0


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="flex_olmo", eps=config.rms_norm_eps)
    mixer = olmo2.mixer_of(config, rope_table(config, context))
    experts, x = olmoe.mixture(config), decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, before=None, after="post_attention_layernorm")
        x = decoder.feed_forward(
            x, n, experts, table=MOE, before=None, after="post_feedforward_layernorm"
        )
    return decoder.finish(x)
