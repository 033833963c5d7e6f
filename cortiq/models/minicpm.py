"""MiniCPM 1, 2 and 4: Llama's layers with factors on embedding, branches and logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("minicpm",)
KEYS = Keys(
    only={"num_experts": 0, "sparse_config": None},
    gguf={
        "embedding_scale": "scale_emb", "logit_scale": "logit_scale",
        "residual_scale": "residual_scale",
    },
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias"},
)  # fmt: skip
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MiniCPMConfig`.

    Attributes
    ----------
    scale_depth : branches are multiplied by it, divided by the root of the number of layers.
    dim_model_base : logits are multiplied by it, divided by the width.
    mup_denominator : the number of layers that the factor of branches was found for.
    residual_scale, logit_scale : the factor of branches, and the divisor of logits, of GGUF files.
    """

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    scale_emb: float = 1.0
    scale_depth: float = 1.0
    dim_model_base: float = 1.0
    mup_denominator: int | None = None
    residual_scale: float | None = None
    logit_scale: float | None = None

    def factors(self) -> tuple[float, float]:
        """Return the factors of branches and of logits."""
        layers = self.num_hidden_layers
        if self.mup_denominator not in (None, layers):
            what = f"mup_denominator is {self.mup_denominator} with {layers} layers"
            raise UnsupportedError(what, where="config")
        branches = self.residual_scale or self.scale_depth / math.sqrt(layers)
        if self.source == "gguf":
            return branches, 1 / (self.logit_scale or 1.0)
        return branches, self.dim_model_base / self.hidden_size


def build(config: Config, context: int) -> Program:
    """Build the trunk; GGUF files hold q and k rows pair by pair."""
    branches, logits = config.factors()
    decoder = Decoder(config, context, family="minicpm", eps=config.rms_norm_eps, residual=branches)
    mixer = attention(
        config, rope=rope_table(config, context), biased=config.attention_bias,
        pairing="interleaved" if config.source == "gguf" else "half",
        output_biased=config.attention_bias,
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.embed(config.scale_emb)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x, multiplier=logits)
