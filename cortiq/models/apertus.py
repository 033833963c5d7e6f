"""Apertus 1 and 1.5's text: Llama's blocks with normed heads, and xIELU in a plain MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Embedding, QKNorm, XieluMLP
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.formed_vectors import FormedVector, of_each_layer
from cortiq.models.layer_kinds import by_layer
from cortiq.models.names import Names
from cortiq.models.parts import HEAD, TABLE, Decoder, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("apertus", "apertus1p5_text")
GGUF = ("apertus",)
ROLES = ("alpha_p", "alpha_n", "beta")
KEYS = Keys(
    only={"hidden_act": "xielu", "mlp_bias": False, "post_norm": False, "qk_norm": True},
    gguf={f"xielu.{role}": f"xielu_{role}" for role in (*ROLES, "eps")},
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias"},
)
FEED_FORWARD: Mapping[str, str] = {
    "up": "up_proj.weight", "down": "down_proj.weight", "alpha_p": "act_fn.alpha_p",
    "alpha_n": "act_fn.alpha_n", "beta": "act_fn.beta",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `ApertusConfig`.

    Attributes
    ----------
    output_vocab_size : rows of a head that is apart from the table: the first tokens, all of texts.
    xielu_alpha_p, xielu_alpha_n, xielu_beta, xielu_eps : of GGUF files, for all layers or each. The
        last bounds what is computed of a number near 0, which changes nothing.
    """

    max_position_embeddings: int = 65536
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    output_vocab_size: int | None = None
    xielu_alpha_p: float | tuple[float, ...] = 0.0
    xielu_alpha_n: float | tuple[float, ...] = 0.0
    xielu_beta: float | tuple[float, ...] = 0.0
    xielu_eps: float | tuple[float, ...] = 0.0
    not_in_json: ClassVar[frozenset[str]] = frozenset(
        {"source", "xielu_eps", *(f"xielu_{role}" for role in ROLES)}
    )
    default_theta: ClassVar[float] = 12000000.0


def names(config: BaseConfig) -> Names:
    """Return the names of tensors; GGUF files have the numbers of xIELU in their metadata."""
    assert isinstance(config, Config)
    held = {f"mlp.act_fn.{role}": _of_metadata(config, role) for role in ROLES}
    return Names(
        gguf={"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"},
        formed=held if config.source == "gguf" else {},
        unread=r"model\.layers\.\d+\.mlp\.act_fn\.eps",
    )


def _of_metadata(config: Config, role: str) -> FormedVector:
    """Return a number of each layer as a vector that is made of no tensor."""
    key = f"xielu_{role}"
    values = by_layer(getattr(config, key), config.num_hidden_layers, key)
    return of_each_layer(values)


NAMES = names


def build(config: Config, context: int) -> Program:
    """Build the trunk, whose vocabulary is that of its head.

    Raises
    ------
    FormatError : a head of fewer rows that is the table, or one of more.
    """
    count = config.output_vocab_size or config.vocab_size
    if count > config.vocab_size or (config.tie_word_embeddings and count < config.vocab_size):
        what = f"{HEAD} of {count} rows beside a table of {config.vocab_size}"
        raise FormatError(what, where="config")
    headed = replace(config, vocab_size=count)
    decoder = Decoder(headed, context, family="apertus", eps=config.rms_norm_eps)
    mixer = attention(
        config,
        rope=rope_table(config, context),
        qk_norm=QKNorm(config.rms_norm_eps),
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )
    mlp = XieluMLP(config.hidden_size, config.intermediate_size)
    table = Embedding(config.vocab_size, config.hidden_size)
    x = decoder.builder.add(table, decoder.token, name="embed", weights={"table": TABLE})
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, before="attention_layernorm")
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD, before="feedforward_layernorm")
    return decoder.finish(x)
