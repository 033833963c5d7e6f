"""VaultGemma: Gemma 2 without the norms after its blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models import gemma2, gemma3
from cortiq.models.parts import Decoder, gated_mlp, norm_offset
from cortiq.models.rope import rope_table

ARCHITECTURES = ("vaultgemma",)
GGUF: tuple[str, ...] = ()
KEYS = gemma2.KEYS
NAMES = gemma2.NAMES


@dataclass(frozen=True, kw_only=True)
class Config(gemma2.Config):
    """Fields of `VaultGemmaConfig`."""


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    offset = norm_offset(config)
    decoder = Decoder(config, context, family="vaultgemma", eps=config.rms_norm_eps, offset=offset)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_activation)
    x = decoder.embed(math.sqrt(config.hidden_size))
    for n, window in enumerate(config.windows()):
        mixer = gemma2.mixer_of(config, rope, window)
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp, before=gemma3.BEFORE_MLP)
    return decoder.finish(x, soft_cap=config.final_logit_softcapping)
