"""HyperCLOVA X SEED Think: Granite's blocks, if asked with a norm after each; logits multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models import granite
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, gated_mlp

ARCHITECTURES = ("hyperclovax",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(granite.Config):
    """Fields of `HyperCLOVAXConfig`; attention_multiplier is head_dim^(−1/2) unless it is given."""

    attention_multiplier: float | None = None
    use_post_norm: bool = True


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(
        config, context, family="hyperclovax", eps=config.rms_norm_eps,
        residual=config.residual_multiplier,
    )  # fmt: skip
    mixer = granite.mixer_of(config, context)
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    norms = ("post_norm1", "post_norm2") if config.use_post_norm else (None, None)
    x = decoder.embed(config.embedding_multiplier)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, after=norms[0])
        x = decoder.feed_forward(x, n, mlp, after=norms[1])
    return decoder.finish(x, multiplier=config.logits_scaling)
