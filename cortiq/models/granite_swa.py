"""Granite with windows: attention sinks everywhere; each layer may have a rotary base."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.ir.layers import Attention
from cortiq.models import granite
from cortiq.models.config import Keys
from cortiq.models.layer_kinds import GLOBAL, LOCAL, each_layer, windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, gated_mlp

ARCHITECTURES = ("granite_swa",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names()
PERIOD = 4
"""Every fourth layer, from the first, has no window where the file lists none."""


@dataclass(frozen=True, kw_only=True)
class Config(granite.Config):
    """Fields of `GraniteSWAConfig`.

    Attributes
    ----------
    layer_rope_theta : rotary base of each layer; with 0 it rotates nothing.
    """

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 128
    layer_types: tuple[str, ...] | None = None
    layer_rope_theta: tuple[float, ...] | None = None

    def mixers(self, context: int) -> list[Attention]:
        """Return the attention of every layer."""
        count = self.num_hidden_layers
        kinds = self.layer_types or [LOCAL if n % PERIOD else GLOBAL for n in range(count)]
        given = self.rope_parameters.get("rope_theta")
        thetas = each_layer(self.layer_rope_theta or given, count, "layer_rope_theta")
        found = []
        for window, theta in zip(windows(kinds, count, self.sliding_window), thetas, strict=True):
            turned = {**self.rope_parameters, "rope_theta": theta or given}
            mixer = granite.mixer_of(replace(self, rope_parameters=turned), context)
            rope = mixer.rope if theta else None
            found.append(replace(mixer, window=window, sinks=True, rope=rope))
        return found


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(
        config, context, family="granite_swa", eps=config.rms_norm_eps,
        residual=config.residual_multiplier,
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    x = decoder.embed(config.embedding_multiplier)
    for n, mixer in enumerate(config.mixers(context)):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x, multiplier=config.factor())
