"""Phi 3 and 4: Llama's blocks in fused matrices; longrope chosen once, by the declared context."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedMLP
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("phi3",)
KEYS = Keys(
    harmless=frozenset({"embd_pdrop", "resid_pdrop"}),
    only={
        "attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False,
        "mlp_bias": False,
    },
)  # fmt: skip
NAMES = Names(
    gguf={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    fused=(
        FusedTensor(
            "self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        ),
        FusedTensor("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
    ),
)
OLD_LONGROPE = ("su", "yarn")
"""Name of longrope in old files."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `Phi3Config`; GGUF files say 0 for no window."""

    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    sliding_window: Amount | None = None


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width = config.hidden_size
    decoder = Decoder(config, context, family="phi3", eps=config.rms_norm_eps)
    rope = dict(config.rope_parameters)
    if rope.get("rope_type") in OLD_LONGROPE:
        rope["rope_type"] = "longrope"
    mixer = Attention(
        width=width,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(replace(config, rope_parameters=rope), context),
        window=config.sliding_window or None,
    )
    mlp = GatedMLP(width, config.intermediate_size, activation(config.hidden_act))
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
