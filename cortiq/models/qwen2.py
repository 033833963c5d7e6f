"""Qwen 2 and 2.5: Llama's blocks with biases on q, k and v; windows above a layer, if at all."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen2vl")
GGUF = ("qwen2", "qwen2vl")
KEYS = Keys(
    only={"use_mrope": False},
    defaults={name: {"rms_norm_eps": 1e-5, "rope_theta": 1e6} for name in ARCHITECTURES[1:3]},
    gguf={"attention.sliding_window": ""},
)
"""Windows of GGUF files are refused: none of this family has any."""
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Qwen2Config`."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    use_sliding_window: bool = False
    sliding_window: Amount | None = Amount(4096)
    max_window_layers: Amount = Amount(28)
    layer_types: tuple[str, ...] | None = None

    def is_local(self, layer: int) -> bool:
        """Return whether a layer has a window if no list gives it."""
        return layer >= self.max_window_layers

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers = range(self.num_hidden_layers)
        window = (self.sliding_window or None) if self.use_sliding_window else None
        if self.layer_types is None:
            return tuple(window if self.is_local(n) else None for n in layers)
        return windows(self.layer_types, len(layers), window)


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; one that sees images turns rows by their positions on several axes."""
    decoder = Decoder(config, context, family="qwen2", eps=config.rms_norm_eps)
    axes = decoder.axes(rows)
    options = {"sections": rows.sections, "biased": True}
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        mixer = attention(config, rope=rope, window=window, **options)
        x = decoder.mixer(x, n, mixer, others=axes)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
