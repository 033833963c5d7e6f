"""SmolLM 3: Llama's blocks; every fourth layer rotates nothing (and has the window, if any)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import windows
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("smollm3",)
KEYS = Keys(
    harmless=frozenset({"max_window_layers"}),
    gguf={"attention.sliding_window": ""},
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"},
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `SmolLM3Config`; `no_rope_layers` is 1 where a layer rotates."""

    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    use_sliding_window: bool = False
    sliding_window: Amount | None = None
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: int = 4
    layer_types: tuple[str, ...] | None = None
    default_theta: ClassVar[float] = 2000000.0

    def rotates(self) -> tuple[bool, ...]:
        """Return whether each layer turns queries and keys."""
        layers, interval = self.num_hidden_layers, self.no_rope_layer_interval
        if self.no_rope_layers is None:
            return tuple((n + 1) % interval != 0 for n in range(layers))
        if len(self.no_rope_layers) != layers or set(self.no_rope_layers) - {0, 1}:
            message = f"no_rope_layers is not {layers} times 0 or 1: {list(self.no_rope_layers)}"
            raise FormatError(message, where="config")
        return tuple(turns == 1 for turns in self.no_rope_layers)

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        window = (self.sliding_window or None) if self.use_sliding_window else None
        if self.layer_types is None:
            return tuple(None if turns else window for turns in self.rotates())
        return windows(self.layer_types, self.num_hidden_layers, window)


def build(config: Config, context: int) -> Program:
    """Build the trunk; GGUF files hold q and k rows pair by pair."""
    decoder = Decoder(config, context, family="smollm3", eps=config.rms_norm_eps)
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    rope, biased = rope_table(config, context), config.attention_bias
    pairing = "interleaved" if config.source == "gguf" else "half"
    x = decoder.embed()
    for n, (turns, window) in enumerate(zip(config.rotates(), config.windows(), strict=True)):
        mixer = attention(
            config, rope=rope if turns else None, pairing=pairing, window=window, biased=biased,
            output_biased=biased,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
