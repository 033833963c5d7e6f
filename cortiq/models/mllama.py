"""Llama 3.2 Vision's text model: Llama's blocks; layers that attend to an image are passed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Embedding
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import HEAD, TABLE, Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("mllama_text_model",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(harmless=frozenset({"dropout"}))
CROSSED = (3, 8, 13, 18, 23, 28, 33, 38)
"""Layers that attend to an image where no list says otherwise."""
OF_IMAGES = 8
"""Rows of the table after those of texts."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MllamaTextConfig`.

    Attributes
    ----------
    cross_attention_layers : layers that a text without an image does not pass.
    """

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    cross_attention_layers: tuple[int, ...] | None = None
    default_theta: ClassVar[float] = 500000.0

    @property
    def crossed(self) -> tuple[int, ...]:
        """Layers that attend to an image."""
        return CROSSED if self.cross_attention_layers is None else self.cross_attention_layers


def NAMES(config: Config) -> Names:
    """Return the tensors' names; layers that attend to an image are not read."""
    layers = "|".join(map(str, config.crossed))
    return Names(unread=rf"model\.layers\.({layers})\..*" if layers else "")


def build(config: Config, context: int) -> Program:
    """Build the trunk of the layers between those that attend to an image."""
    count = config.num_hidden_layers
    if config.tie_word_embeddings:
        what = f"tie_word_embeddings: {HEAD} has no rows for an image's tokens"
        raise FormatError(what, where="config")
    own = [n for n in range(count) if n not in config.crossed]
    decoder = Decoder(config, context, family="mllama", eps=config.rms_norm_eps, stored=own)
    mixer = attention(config, rope=rope_table(config, context))
    mlp = gated_mlp(config, config.hidden_act)
    table = Embedding(config.vocab_size + OF_IMAGES, config.hidden_size)
    x = decoder.builder.add(table, decoder.token, name="embed", weights={"table": TABLE})
    for n in range(len(own)):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
