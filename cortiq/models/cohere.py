"""Command R and R+: attention and MLP read one LayerNorm without bias, and are added together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import LayerNorm, QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("cohere", "command-r")
GGUF = ("command-r",)
BIASED = {"attention_bias": "blk.0.attn_q.bias"}
KEYS = Keys(
    gguf={"attention.layer_norm_epsilon": "layer_norm_eps", "logit_scale": "logit_scale"},
    gguf_absent={"logit_scale": 1.0},
    gguf_tensors={**BIASED, "use_qk_norm": "blk.0.attn_q_norm.weight"},
)
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class CommonConfig(BaseConfig):
    """Fields that every version has."""

    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    layer_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False
    logit_scale: float = 0.0625
    default_theta: ClassVar[float] = 500000.0
    family: ClassVar[str]

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer: none."""
        return (None,) * self.num_hidden_layers

    def rotates(self, window: int | None) -> bool:
        """Return whether a layer turns queries and keys."""
        return True

    def qk_norm(self) -> QKNorm | None:
        """Return the norm of query and key heads: none."""
        return None


@dataclass(frozen=True, kw_only=True)
class Config(CommonConfig):
    """Fields of `CohereConfig`."""

    use_qk_norm: bool = False
    family: ClassVar[str] = "cohere"

    def qk_norm(self) -> QKNorm | None:
        """Return the norm of query and key heads, if they have one (R+)."""
        return QKNorm(self.layer_norm_eps, centred=True, by_head=True) if self.use_qk_norm else None


def build(config: CommonConfig, context: int) -> Program:
    """Build the trunk."""
    norm = LayerNorm(config.hidden_size, config.layer_norm_eps, biased=False)
    decoder = Decoder(config, context, family=config.family, norm=norm)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        row = decoder.norm(x, f"layers.{n}.norm", f"model.layers.{n}.input_layernorm")
        mixer = attention(
            config, rope=rope if config.rotates(window) else None, pairing="interleaved",
            window=window, biased=config.attention_bias, output_biased=config.attention_bias,
            qk_norm=config.qk_norm(),
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer, before=None, read=row)
        x = decoder.feed_forward(x, n, mlp, before=None, read=row)
    return decoder.finish(x, multiplier=config.logit_scale)
