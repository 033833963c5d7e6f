"""InternLM 2: Llama's layers under other names, q, k and v of each group in one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table

ARCHITECTURES = ("internlm2",)
KEYS = Keys(harmless=frozenset({"attn_implementation"}), gguf_tensors={"bias": "blk.0.attn_q.bias"})
NAMES = Names(
    folder={"model.embed_tokens.": "model.tok_embeddings.", "lm_head.": "output."},
    gguf={
        **{f"attention.{role}": f"attn_{role}" for role in "qkv"},
        "attention.wo": "attn_output", "attention_norm": "attn_norm", "ffn_norm": "ffn_norm",
        "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
    },
)  # fmt: skip
TENSORS: Mapping[str, str] = {
    "qkv": "wqkv.weight", "qkv_bias": "wqkv.bias", "o": "wo.weight", "o_bias": "wo.bias",
    **{role: f"{role}.weight" for role in "qkv"},
    **{f"{role}_bias": f"{role}.bias" for role in "qkv"},
}  # fmt: skip
FEED_FORWARD: Mapping[str, str] = {"gate": "w1.weight", "up": "w3.weight", "down": "w2.weight"}


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `InternLM2Config`."""

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    bias: bool = False


def build(config: Config, context: int) -> Program:
    """Build the trunk; GGUF files hold q, k and v apart, rows of q and k pair by pair."""
    packed = config.source == "gguf"
    decoder = Decoder(config, context, family="internlm2", eps=config.rms_norm_eps)
    mixer = attention(
        config, rope=rope_table(config, context), pairing="interleaved" if packed else "half",
        biased=config.bias, output_biased=config.bias, joint=not packed,
    )  # fmt: skip
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, tensors="attention", table=TENSORS, before="attention_norm")
        x = decoder.feed_forward(
            x, n, mlp, tensors="feed_forward", table=FEED_FORWARD, before="ffn_norm"
        )
    return decoder.finish(x)
