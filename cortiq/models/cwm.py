"""CWM: Llama's blocks without biases; three layers of four have a window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("cwm",)
GGUF: tuple[str, ...] = ()
KEYS = Keys()
NAMES = Names()
PATTERN = 4
"""Every fourth layer, from the first, has no window where the file lists none."""
THETA = 1000000.0
ROPE = {
    "rope_type": "llama3",
    "rope_theta": THETA,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Rotary parameters where the file has none."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `CwmConfig`."""

    head_dim: int | None = 128
    num_key_value_heads: int | None = 8
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    mlp_bias: bool = False
    sliding_window: int | None = 8192
    layer_types: tuple[str, ...] | None = None
    default_theta: ClassVar[float] = THETA

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers, window = range(self.num_hidden_layers), self.sliding_window or None
        if self.layer_types is None:
            return tuple(window if n % PATTERN else None for n in layers)
        return windows(self.layer_types, len(layers), window)


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object in config.json, with the rotary parameters that it leaves out."""
    if given.get("rope_parameters") or given.get("rope_scaling"):
        return dict(given)
    kept = {key: value for key, value in given.items() if not key.startswith("rope_")}
    return kept | {"rope_parameters": ROPE | {"rope_theta": given.get("rope_theta", THETA)}}


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="cwm", eps=config.rms_norm_eps)
    rope = rope_table(config, context)
    mlp = gated_mlp(config, config.hidden_act, biased=config.mlp_bias)
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        x = decoder.mixer(x, n, attention(config, rope=rope, window=window))
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
