"""GPT BigCode (StarCoder 1, SantaCoder): GPT-2 whose heads share one key and value unless asked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models import gpt2
from cortiq.models.config import Keys
from cortiq.models.parts import Decoder, activation, attention

ARCHITECTURES = ("gpt_bigcode", "starcoder")
GGUF = ("starcoder",)
KEYS = Keys(
    aliases=gpt2.KEYS.aliases,
    same_as=gpt2.KEYS.same_as,
    harmless=gpt2.KEYS.harmless | {
        "attention_softmax_in_fp32", "inference_runner", "max_batch_size", "max_sequence_length",
        "pad_key_length", "pre_allocate_kv_cache", "scale_attention_softmax_in_fp32",
        "validate_runner_input",
    },
    only={"add_cross_attention": False, "scale_attn_weights": True},
    gguf=gpt2.KEYS.gguf,
)  # fmt: skip
NAMES = dataclasses.replace(gpt2.FILE, folder=gpt2.FOLDER.folder, unread=gpt2.FOLDER.unread)
TENSORS = {**gpt2.ATTENTION, "qkv": "c_attn.weight", "qkv_bias": "c_attn.bias"}


@dataclass(frozen=True, kw_only=True)
class Config(gpt2.Config):
    """Fields of `GPTBigCodeConfig`.

    Attributes
    ----------
    multi_query : all heads have one key and one value; else the rows of q, k and v are by head.
    """

    hidden_act: str = "gelu_pytorch_tanh"
    multi_query: bool = True

    @property
    def kv_heads(self) -> int:
        """Key and value heads."""
        return 1 if self.multi_query else self.num_attention_heads


def build(config: Config, context: int) -> Program:
    """Build the trunk.

    Raises
    ------
    FormatError : a number of key and value heads that `multi_query` contradicts.
    """
    if config.num_key_value_heads not in (None, config.kv_heads):
        what = f"num_key_value_heads is {config.num_key_value_heads}, not {config.kv_heads}"
        raise FormatError(what, where="config")
    norm = LayerNorm(config.hidden_size, config.layer_norm_epsilon)
    decoder = Decoder(config, context, family="gpt_bigcode", norm=norm)
    mixer = attention(config, biased=True, output_biased=True, joint=not config.multi_query)
    mlp = MLP(config.hidden_size, config.inner, activation(config.hidden_act), biased=True)
    x = gpt2.placed(decoder, config)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, tensors="attn", table=TENSORS, before="ln_1")
        x = decoder.feed_forward(x, n, mlp, table=gpt2.FEED_FORWARD, before="ln_2")
    return decoder.finish(x)
