"""Phi 3 and 4, 4 multimodal's text: Llama's blocks fused; longrope chosen once, by the context."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedMLP
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("phi3", "phi4_multimodal_text", "phi4mm", "phi4mm_text")
GGUF = ("phi3",)
KEYS = Keys(
    harmless=frozenset({
        "audio_config", "audio_processor", "embd_layer", "embd_pdrop", "img_processor",
        "resid_pdrop", "speech_lora", "vision_lora",
    }),
    defaults={
        "phi4_multimodal_text": {"max_position_embeddings": 131072, "num_key_value_heads": 8},
    },
    only={
        "attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False,
        "mlp_bias": False,
    },
)  # fmt: skip


def beside_adapters(name: str) -> str:
    """Return a tensor's name in folders whose matrices have adapters for images and sound.

    These are not applied to texts.
    """
    stem = name.removesuffix("_proj.weight")
    return f"{stem}_proj.base_layer.weight" if stem != name else name


NAMES = Names(
    forms=(beside_adapters,),
    unread=r"model\.embed_tokens_extend\..*|.*\.lora_[AB]\.(speech|vision)\.weight",
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
