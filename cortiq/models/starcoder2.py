"""StarCoder 2: LayerNorms, a plain MLP, biases everywhere, a window in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import MLP, LayerNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table

ARCHITECTURES = ("starcoder2",)
KEYS = Keys(
    same_as={"layer_norm_epsilon": "norm_epsilon"},
    harmless=frozenset({
        "attention_softmax_in_fp32", "embedding_dropout", "residual_dropout",
        "scale_attention_softmax_in_fp32",
    }),
    only={"mlp_type": "default", "norm_type": "layer_norm", "scale_attn_weights": True},
    gguf={"attention.layer_norm_epsilon": "norm_epsilon"},
    gguf_tensors={"use_bias": "blk.0.attn_q.bias"},
)  # fmt: skip
NAMES = Names(gguf={"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"})
FEED_FORWARD: Mapping[str, str] = {
    "up": "c_fc.weight", "down": "c_proj.weight", "up_bias": "c_fc.bias",
    "down_bias": "c_proj.bias",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Starcoder2Config`."""

    num_key_value_heads: int | None = 2
    max_position_embeddings: int = 4096
    tie_word_embeddings: bool = True
    norm_epsilon: float = 1e-5
    hidden_act: str = "gelu_pytorch_tanh"
    use_bias: bool = True
    sliding_window: int | None = None


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, biased = config.hidden_size, config.use_bias
    norm = LayerNorm(width, config.norm_epsilon)
    decoder = Decoder(config, context, family="starcoder2", norm=norm)
    mixer = attention(
        config,
        rope=rope_table(config, context),
        window=config.sliding_window,
        biased=biased,
        output_biased=biased,
    )
    mlp = MLP(width, config.intermediate_size, activation(config.hidden_act), biased)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp, table=FEED_FORWARD)
    return decoder.finish(x)
