"""Granite 3: Llama's blocks with factors on embedding, attention, branches and logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Attention
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("granite",)
KEYS = Keys(
    gguf={
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "logit_scale": "logits_scaling",
        "residual_scale": "residual_multiplier",
        "rope.scaling.finetuned": "turns",
    },
    gguf_absent={"attention.scale": 0.0, "embedding_scale": 1.0, "residual_scale": 1.0},
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"},
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `GraniteConfig`.

    Attributes
    ----------
    turns : whether anything is rotated, as GGUF files of Granite 4 without Mamba-2 say.
    """

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    embedding_multiplier: float = 1.0
    attention_multiplier: float | None = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    turns: bool = True
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "turns"})

    def scale(self) -> float:
        """Return the factor on q·k; 0 in a GGUF file stands for the usual one."""
        given = self.attention_multiplier
        if given is None or (self.source == "gguf" and not given):
            return self.head_width**-0.5
        return given

    def factor(self) -> float:
        """Return the factor of logits: 1/logits_scaling."""
        if self.logits_scaling <= 0:
            raise FormatError(f"logits_scaling is {self.logits_scaling}", where="config")
        return 1 / self.logits_scaling


def mixer_of(config: Config, context: int) -> Attention:
    """Return a layer's attention; GGUF files hold q and k rows pair by pair."""
    return attention(
        config,
        scale=config.scale(),
        rope=rope_table(config, context) if config.turns else None,
        pairing="interleaved" if config.source == "gguf" else "half",
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(
        config, context, family="granite", eps=config.rms_norm_eps,
        residual=config.residual_multiplier,
    )  # fmt: skip
    mixer = mixer_of(config, context)
    mlp = gated_mlp(config, config.hidden_act, config.mlp_bias)
    x = decoder.embed(config.embedding_multiplier)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x, multiplier=config.factor())
