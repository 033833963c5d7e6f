"""GPT-J: attention and a plain MLP read one LayerNorm; a part of every head is rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.gpt2 import KEYS as GPT2
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.numerics.rope import RopeTable

ARCHITECTURES = ("gptj",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    aliases=GPT2.aliases,
    same_as=GPT2.same_as,
    harmless=GPT2.harmless | {"gradient_checkpointing", "rotary"},
    only={"scale_attn_weights": True},
)
NAMES = Names(
    folder={
        "model.embed_tokens.": "wte.", "model.layers.": "h.", "model.norm.": "ln_f.",
    },
    unread=r"h\.\d+\.attn\.(masked_)?bias",
)  # fmt: skip
ATTENTION: Mapping[str, str] = {
    **{role: f"{role}_proj.weight" for role in "qkv"}, "o": "out_proj.weight",
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {
    "up": "fc_in.weight", "up_bias": "fc_in.bias", "down": "fc_out.weight",
    "down_bias": "fc_out.bias",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `GPTJConfig`; an MLP is four times as wide as the model unless the file says so."""

    intermediate_size: Amount = Amount(0)
    hidden_act: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    rotary_dim: int | None = 64


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width = config.hidden_size
    norm = LayerNorm(width, config.layer_norm_epsilon)
    decoder = Decoder(config, context, family="gptj", norm=norm)
    table = RopeTable(config.default_theta, config.rotary_dim or config.head_width)
    mixer = attention(config, rope=table, pairing="interleaved")
    inner, act = config.intermediate_size or 4 * width, activation(config.hidden_act)
    mlp = MLP(width, inner, act, biased=True)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        row = decoder.norm(x, f"layers.{n}.norm", f"model.layers.{n}.ln_1")
        x = decoder.mixer(x, n, mixer, tensors="attn", table=ATTENTION, before=None, read=row)
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD, before=None, read=row)
    return decoder.finish(x, biased=True)
