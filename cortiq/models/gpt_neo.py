"""GPT-Neo: GPT-2 with unscaled scores, and a window in every other layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models import gpt2
from cortiq.models.config import Keys
from cortiq.models.config_limits import MAX_LAYERS
from cortiq.models.layer_kinds import layer_list
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, activation, attention

ARCHITECTURES = ("gpt_neo",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases={
        "activation_function": "hidden_act", "num_heads": "num_attention_heads",
        "num_layers": "num_hidden_layers",
    },
    harmless=gpt2.KEYS.harmless | {
        "classifier_dropout", "embed_dropout", "gradient_checkpointing", "resid_dropout",
    },
)  # fmt: skip
NAMES = Names(folder=gpt2.FOLDER.folder, unread=r"h\.\d+\.attn\.attention\.(masked_)?bias")
TENSORS: Mapping[str, str] = {
    **ATTENTION, "o": "out_proj.weight", "o_bias": "out_proj.bias",
}  # fmt: skip
EVERYWHERE, NEAR = "global", "local"
TURNS: Any = [[[EVERYWHERE, NEAR], 12]]
"""Kinds of layers and how often they come in turn, where the file does not say."""


@dataclass(frozen=True, kw_only=True)
class Config(gpt2.Config):
    """Fields of `GPTNeoConfig`."""

    max_position_embeddings: int = 2048
    window_size: int = 256
    attention_layers: tuple[str, ...] = ()


def values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object in config.json, with the kinds of layers listed one by one.

    Raises
    ------
    FormatError : what says how often which kinds come in turn says something else.
    """
    found = dict(given)
    turns = found.pop("attention_types", None) or TURNS
    try:
        kinds = [
            kind
            for listed, times in turns
            for _ in range(min(times, MAX_LAYERS))
            for kind in listed
        ]
    except (TypeError, ValueError):
        what = f"attention_types is {turns!r}, not lists of kinds and how often they come"
        raise FormatError(what, where="config") from None
    return found | {"attention_layers": found.get("attention_layers") or kinds}


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
    decoder = Decoder(config, context, family="gpt_neo", norm=norm)
    mlp = MLP(config.hidden_size, config.inner, activation(config.hidden_act), biased=True)
    x, count = gpt2.placed(decoder, config), config.num_hidden_layers
    kinds = layer_list(config.attention_layers, count, (EVERYWHERE, NEAR), "attention_layers")
    for n, kind in enumerate(kinds):
        window = config.window_size if kind == NEAR else None
        mixer = attention(config, scale=1.0, window=window, output_biased=True)
        x = decoder.mixer(x, n, mixer, tensors="attn.attention", table=TENSORS, before="ln_1")
        x = decoder.feed_forward(x, n, mlp, table=gpt2.FEED_FORWARD, before="ln_2")
    return decoder.finish(x)
