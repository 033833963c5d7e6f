"""Ministral: Mistral's blocks, with a window in the layers that are listed."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, LOCAL, windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("ministral",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MinistralConfig`."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] | None = None

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer: of all, if there is one and no list."""
        count = self.num_hidden_layers
        kinds = self.layer_types or (LOCAL if self.sliding_window else GLOBAL,) * count
        return windows(kinds, count, self.sliding_window)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="ministral", eps=config.rms_norm_eps)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        x = decoder.mixer(x, n, attention(config, rope=rope, window=window))
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
