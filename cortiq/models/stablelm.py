"""StableLM 2: LayerNorms, of heads too if asked; a part of every head rotated; parallel blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import LayerNorm, QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("stablelm",)
KEYS = Keys(
    harmless=frozenset({"hidden_dropout"}),
    gguf={
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "use_parallel_residual": "use_parallel_residual",
    },
    gguf_tensors={
        "use_qkv_bias": "blk.0.attn_q.bias", "qk_layernorm": "blk.0.attn_q_norm.weight",
    },
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `StableLmConfig`."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 4096
    layer_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    use_qkv_bias: bool = False
    use_parallel_residual: bool = False
    qk_layernorm: bool = False
    default_turned: ClassVar[float] = 0.25


def names(config: BaseConfig) -> Names:
    """Return the names: folders hold the norms of query and key heads one by one."""
    heads = {"q": config.num_attention_heads, "k": config.kv_heads}
    each = {
        f"self_attn.{role}_norm": tuple(f"self_attn.{role}_layernorm.norms.{n}" for n in range(h))
        for role, h in heads.items()
    }
    return Names(joined=each)


NAMES = names


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
    decoder = Decoder(config, context, family="stablelm", norm=norm)
    mixer = attention(
        config, rope=rope_table(config, context), biased=config.use_qkv_bias,
        qk_norm=QKNorm(config.layer_norm_eps, centred=True, by_head=True)
        if config.qk_layernorm else None,
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        if config.use_parallel_residual:
            row = decoder.norm(x, f"layers.{n}.norm", f"model.layers.{n}.input_layernorm")
            x = decoder.mixer(x, n, mixer, before=None, read=row)
            x = decoder.feed_forward(x, n, mlp, before=None, read=row)
        else:
            x = decoder.mixer(x, n, mixer)
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
