"""Qwen 2 and 2.5: Llama's blocks with biases on q, k and v; windows above a layer, if at all."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedMLP
from cortiq.models.config import Amount, BaseConfig, Keys, layer_list
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation
from cortiq.models.rope import rope_table

ARCHITECTURES = ("qwen2",)
KEYS = Keys(gguf={"attention.sliding_window": ""})
"""Windows of GGUF files are refused: none of this family has any."""
NAMES = Names()
KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Qwen2Config`; GGUF files have no windows."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: Amount = Amount(28)
    layer_types: tuple[str, ...] | None = None

    def windows(self) -> tuple[int | None, ...]:
        """The window of every layer, `None` where it sees everything."""
        layers = range(self.num_hidden_layers)
        window = self.sliding_window if self.use_sliding_window else None
        if self.layer_types is None:
            return tuple(window if n >= self.max_window_layers else None for n in layers)
        kinds = layer_list(self.layer_types, len(layers), KINDS)
        if window is None and "sliding_attention" in kinds:
            message = "layer_types has sliding_attention, but there is no sliding_window"
            raise FormatError(message, where="config", hint="use_sliding_window switches it on")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def build(config: Config, context: int) -> Program:
    """The trunk."""
    width, rope = config.hidden_size, rope_table(config, context)
    decoder = Decoder(config, context, family="qwen2", eps=config.rms_norm_eps)
    mlp = GatedMLP(width, config.intermediate_size, activation(config.hidden_act))
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        mixer = Attention(
            width=width,
            heads=config.num_attention_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_width,
            rope=rope,
            window=window,
            biased=True,
        )
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
