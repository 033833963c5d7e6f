"""DiffLlama: Llama's blocks with differential attention, the difference of two softmaxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

from cortiq.ir import Program
from cortiq.ir.layers import DifferentialAttention
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.formed_vectors import FormedVector
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, gated_mlp
from cortiq.models.rope import rope_table
from cortiq.numerics.contract import Floats
from cortiq.numerics.scaling import differential_gain

ARCHITECTURES = ("diffllama",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(harmless=frozenset({"lambda_std_dev"}))
LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
"""Vectors whose products, as exponents, make λ."""
SECOND: Mapping[str, str] = {"second": "lambda"}
"""The role of −λ, and what stands for it in names."""


def initial(layer: int) -> float:
    """Return what λ has by itself: 0.8 − 0.6·e^(−0.3·layer), in decimals."""
    context = Context(prec=40)
    falling = context.exp(context.multiply(Decimal("-0.3"), Decimal(layer)))
    return float(context.subtract(Decimal("0.8"), context.multiply(Decimal("0.6"), falling)))


def subtracted(vectors: Sequence[Floats], layer: int, name: str) -> Floats:
    """Return −λ of a layer."""
    return differential_gain(vectors, initial(layer), name)


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `DiffLlamaConfig`."""

    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False


def names(config: BaseConfig) -> Names:
    """Return the names of the vectors that make −λ of a layer."""
    tensors = tuple(f"self_attn.{name}" for name in LAMBDAS)
    return Names(formed={"self_attn.lambda": FormedVector(tensors, config.head_width, subtracted)})


NAMES = names


def build(config: Config, context: int) -> Program:
    """Build the trunk; the outputs of two heads are less by what λ starts from, wherever it is."""
    decoder = Decoder(config, context, family="diffllama", eps=config.rms_norm_eps)
    mlp, rope = gated_mlp(config, config.hidden_act), rope_table(config, context)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        mixer = DifferentialAttention(
            config.hidden_size, config.num_attention_heads, config.kv_heads, config.head_width,
            eps=config.rms_norm_eps, factor=1.0 - initial(n), rope=rope,
            biased=config.attention_bias, output_biased=config.attention_bias,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer, table={**ATTENTION, **SECOND})
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
