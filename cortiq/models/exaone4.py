"""EXAONE 4: norms after each block only; layers without a window rotate nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("exaone4",)
KEYS = Keys()
NAMES = Names(
    gguf={
        "post_attention_layernorm": "post_attention_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
)
PATTERN = 4
"""Every fourth layer of a GGUF file with windows has none."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Exaone4Config`; `sliding_window_pattern` is a count, or a word such as LLLG."""

    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    sliding_window: Amount | None = None
    sliding_window_pattern: Amount | str | None = Amount(PATTERN)
    layer_types: tuple[str, ...] | None = None
    windows_turn: ClassVar[bool] = True

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers, window = range(self.num_hidden_layers), self.sliding_window or None
        if self.layer_types is not None:
            return windows(self.layer_types, len(layers), window)
        pattern = self.sliding_window_pattern or PATTERN
        turn = len(pattern) if isinstance(pattern, str) else pattern
        return tuple(window if (n + 1) % turn else None for n in layers)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="exaone4", eps=config.rms_norm_eps)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        turns = window is not None or not config.sliding_window
        mixer = attention(
            config, rope=rope if turns else None, window=window, qk_norm=QKNorm(config.rms_norm_eps)
        )
        x = decoder.mixer(x, n, mixer, before=None, after="post_attention_layernorm")
        x = decoder.feed_forward(x, n, mlp, before=None, after="post_feedforward_layernorm")
    return decoder.finish(x)
