"""GPT-1: GPT-2's blocks with a norm after each sum in place of one before each branch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models import gpt2
from cortiq.models.config import Keys
from cortiq.models.parts import Decoder, attention

ARCHITECTURES = ("openai-gpt",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={
        "afn": "hidden_act", "n_embd": "hidden_size", "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers", "n_positions": "max_position_embeddings",
    },
    same_as=gpt2.KEYS.same_as,
    harmless=gpt2.KEYS.harmless | {"n_special", "predict_special_tokens"},
)  # fmt: skip
NAMES = dataclasses.replace(
    gpt2.FOLDER,
    folder={
        "model.embed_tokens.": "tokens_embed.", "model.positions.": "positions_embed.",
        "model.layers.": "h.",
    },
)  # fmt: skip
FUNCTIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
"""`afn` to the activation of the catalogue: its GELU is the form with tanh."""


@dataclass(frozen=True, kw_only=True)
class Config(gpt2.Config):
    """Fields of `OpenAIGPTConfig`; an MLP is four times as wide as the model."""

    max_position_embeddings: int = 512
    hidden_act: str = "gelu"


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    if config.hidden_act not in FUNCTIONS:
        hint = f"supported: {', '.join(FUNCTIONS)}"
        raise UnsupportedError(f"activation {config.hidden_act!r}", where="config", hint=hint)
    norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
    decoder = Decoder(config, context, family="openai_gpt", norm=norm)
    mixer = attention(config, biased=True, output_biased=True)
    mlp = MLP(config.hidden_size, config.inner, FUNCTIONS[config.hidden_act], biased=True)
    x = gpt2.placed(decoder, config)
    for n in range(config.num_hidden_layers):
        here, file = f"layers.{n}", f"model.layers.{n}"
        x = decoder.mixer(
            x, n, mixer, tensors="attn", table=gpt2.ATTENTION, before=None, out="attended"
        )
        x = decoder.norm(x, f"{here}.middle", f"{file}.ln_1")
        x = decoder.feed_forward(x, n, mlp, table=gpt2.FEED_FORWARD, before=None)
        last = n == config.num_hidden_layers - 1
        x = decoder.norm(x, "hidden" if last else f"{here}.normed", f"{file}.ln_2")
    return decoder.finish(x, norm=None)
