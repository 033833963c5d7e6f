"""DiffLlama: Llama's blocks with differential attention, the difference of two softmaxes."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import DifferentialAttention
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.differential import LAMBDAS, SECOND, initial, subtracted
from cortiq.models.formed_vectors import FormedVector
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("diffllama",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(harmless=frozenset({"lambda_std_dev"}))


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
