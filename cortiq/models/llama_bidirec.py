"""Llama whose rows see both sides: Llama-Embed-Nemotron and files of `llama-embed`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.models import llama
from cortiq.models.encoder import BothWays
from cortiq.models.names import Names
from cortiq.models.parts import Decoder

ARCHITECTURES = ("llama_bidirec", "llama-embed")
GGUF = ("llama-embed",)
KEYS = replace(
    llama.KEYS,
    defaults={},
    only={**llama.KEYS.only, "pooling": "avg"},
    gguf_only={**llama.KEYS.gguf_only, "attention.causal": False},
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """Fields of `LlamaBidirectionalConfig`: those of Llama."""


def build(config: Config, context: int) -> Program:
    """Build the trunk, an encoder."""
    if config.sliding_window:
        raise UnsupportedError(f"sliding_window is {config.sliding_window}", where="config")
    decoder = Decoder(config, context, family="llama_bidirec", eps=config.rms_norm_eps)
    both = BothWays(decoder)
    mixer, last = both.attention(llama.attention(config, context))
    return both.finish(llama.layers(decoder, config, mixer, last))
