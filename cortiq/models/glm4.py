"""GLM 4, dense: half of every head rotated by neighbours; GLM 4 0414 with norms around blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("glm4", "glm", "glm4v_text", "glm_ocr_text")
GGUF = ("glm4",)
SEES = {"head_dim": None, "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5}
"""Defaults of text models that are beside a tower."""
KEYS = Keys(
    defaults={
        "glm4v_text": SEES,
        "glm_ocr_text": {**SEES, "attention_bias": False, "num_key_value_heads": 8},
    },
    gguf_tensors={"attention_bias": "blk.0.attn_q.bias"},
)
NAMES = Names(
    gguf={
        "mlp.gate_up_proj": "ffn_up",
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
    },
    fused=(FusedTensor("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),),
)


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `GlmConfig` and `Glm4Config`.

    Attributes
    ----------
    model_type : `glm` has no norms after its blocks.
    """

    model_type: str = "glm4"
    num_key_value_heads: int | None = 2
    head_dim: int | None = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-7
    hidden_act: str = "silu"
    attention_bias: bool = True
    num_nextn_predict_layers: Amount = Amount(0)
    default_turned: ClassVar[float] = 0.5


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; one that sees images turns rows by their positions on several axes."""
    decoder = Decoder(config, context, family="glm4", eps=config.rms_norm_eps)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    options = {"pairing": "interleaved", "biased": config.attention_bias}
    mixer = attention(config, rope=rope, sections=rows.sections, **options)
    around = config.model_type != "glm"
    x, axes = decoder.embed(), decoder.axes(rows)
    for n in range(config.num_hidden_layers):
        after = "post_self_attn_layernorm" if around else None
        x = decoder.mixer(x, n, mixer, after=after, others=axes)
        x = decoder.feed_forward(x, n, mlp, after="post_mlp_layernorm" if around else None)
    return decoder.finish(x)
