"""Llama 2 and 3, Mistral, InternLM 3, IQuest Coder: grouped-query attention and a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program, Value
from cortiq.ir.layers import Attention, GatedMLP
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation
from cortiq.models.rope import rope_table

ARCHITECTURES = ("llama", "mistral", "internlm3", "iquestcoder")
GGUF = ("llama",)
KEYS = Keys(
    aliases={"bias": "mlp_bias", "qkv_bias": "attention_bias"},
    defaults={
        "internlm3": {
            "head_dim": 128, "max_position_embeddings": 32768, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
        },
        "iquestcoder": {
            "head_dim": 128, "max_position_embeddings": 131072, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
        },
        "mistral": {
            "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096,
        },
    },
    harmless=frozenset({
        "_flash_attn_2_enabled", "neftune_noise_alpha", "perceiver_config", "pixel_shuffle_factor",
    }),
    only={
        "clip_qkv": None, "qk_layer_norms": False, "rope_interleaved": False,
        "use_resampler": False, "use_sliding_window": False,
    },
    gguf_only={"expert_count": 0, "expert_used_count": 0},
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_gate.bias"},
)  # fmt: skip
NAMES = Names()


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `LlamaConfig` and `MistralConfig`."""

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None


def attention(config: Config, context: int) -> Attention:
    """Return a layer's attention; GGUF files of this family hold q and k rows pair by pair."""
    return Attention(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(config, context),
        pairing="interleaved" if config.source == "gguf" else "half",
        window=config.sliding_window,
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="llama", eps=config.rms_norm_eps)
    return decoder.finish(layers(decoder, config, attention(config, context)))


def layers(decoder: Decoder, config: Config, mixer: Attention, *others: Value) -> Value:
    """Write the embedding and every layer; `others` are what attention takes besides."""
    inner, act = config.intermediate_size, activation(config.hidden_act)
    mlp = GatedMLP(config.hidden_size, inner, act, config.mlp_bias)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, others=others)
        x = decoder.feed_forward(x, n, mlp)
    return x
