"""OLMo 3: OLMo 2 with a window in three of four layers; only whole attention's RoPE is scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.models import olmo2
from cortiq.models.config import Keys, convert_config
from cortiq.models.layer_kinds import GLOBAL, LOCAL, windows
from cortiq.models.parts import Decoder, gated_mlp
from cortiq.models.rope import of_layer_type, rope_table
from cortiq.numerics.rope import RopeTable

ARCHITECTURES = ("olmo3", "olmo2+windows")
GGUF = ("olmo2+windows",)
KEYS = Keys(gguf={"rope.freq_base_swa": "swa_rope_theta"})
NAMES = olmo2.NAMES
PATTERN = 4
"""Every fourth layer has no window where the file lists none."""


@dataclass(frozen=True, kw_only=True)
class Config(olmo2.Config):
    """Fields of `Olmo3Config`."""

    sliding_window: int = 4096
    layer_types: tuple[str, ...] | None = None
    default_theta: ClassVar[float] = 500000.0

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers = range(self.num_hidden_layers)
        if self.layer_types is None:
            return tuple(self.sliding_window if (n + 1) % PATTERN else None for n in layers)
        return windows(self.layer_types, len(layers), self.sliding_window)


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files, which may have a rotary base of layers with windows."""

    swa_rope_theta: float | None = None

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        rope = self.rope_parameters
        if self.swa_rope_theta is not None:
            local = {"rope_type": "default", "rope_theta": self.swa_rope_theta}
            rope = {GLOBAL: rope, LOCAL: local}
        return convert_config(Config, self, where, rope_parameters=rope)


def local_rope(config: Config, context: int) -> RopeTable:
    """Return the table of windowed layers: never scaled, unless the file has a separate entry."""
    if LOCAL in config.rope_parameters:
        return rope_table(config, context, LOCAL)
    given = of_layer_type(config, GLOBAL) or config.rope_parameters
    return RopeTable(float(given.get("rope_theta", config.default_theta)), config.head_width)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="olmo3", eps=config.rms_norm_eps)
    local, everywhere = local_rope(config, context), rope_table(config, context, GLOBAL)
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        mixer = olmo2.mixer_of(config, local if window else everywhere, window)
        x = decoder.mixer(x, n, mixer, before=None, after="post_attention_layernorm")
        x = decoder.feed_forward(x, n, mlp, before=None, after="post_feedforward_layernorm")
    return decoder.finish(x)
