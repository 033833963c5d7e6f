"""Granite with windows: attention sinks everywhere; each layer may have a rotary base."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import Attention
from cortiq.models import granite
from cortiq.models.config import Keys
from cortiq.models.layer_kinds import GLOBAL, LOCAL, by_layer, each_layer, windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, gated_mlp

ARCHITECTURES = ("granite_swa",)
KEYS = Keys(
    gguf={
        **{key: name for key, name in granite.KEYS.gguf.items() if name != "turns"},
        "attention.rope_pattern": "rope_pattern",
    },
    gguf_absent=granite.KEYS.gguf_absent,
    gguf_tensors=granite.KEYS.gguf_tensors,
)
NAMES = Names(gguf={"self_attn.sinks": "attn_sinks.weight"})
PERIOD = 4
"""Every fourth layer, from the first, has no window where the file lists none."""


@dataclass(frozen=True, kw_only=True)
class Config(granite.Config):
    """Fields of `GraniteSWAConfig`.

    Attributes
    ----------
    layer_rope_theta : rotary base of each layer; with 0 it rotates nothing.
    rope_pattern : whether each layer rotates, in GGUF files; none for all.
    """

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = 128
    layer_types: tuple[str, ...] | None = None
    layer_rope_theta: tuple[float, ...] | None = None
    rope_pattern: tuple[bool, ...] = ()
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "turns", "rope_pattern"})

    def mixers(self, context: int) -> list[Attention]:
        """Return the attention of every layer."""
        count = self.num_hidden_layers
        kinds = self.layer_types or [LOCAL if n % PERIOD else GLOBAL for n in range(count)]
        given = self.rope_parameters.get("rope_theta")
        thetas = each_layer(self.layer_rope_theta or given, count, "layer_rope_theta")
        if self.rope_pattern:
            turns = by_layer(self.rope_pattern, count, "rope_pattern")
            thetas = tuple(given if turned else 0.0 for turned in turns)
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
