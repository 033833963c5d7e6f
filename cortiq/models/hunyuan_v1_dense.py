"""HunYuan, dense: query and key heads normed after RoPE, whose base a fixed alpha stretches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cortiq.ir import Program
from cortiq.ir.layers import QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, Decoder, attention, gated_mlp
from cortiq.models.rope import rope_table
from cortiq.numerics.rope import RopeTable

ARCHITECTURES = ("hunyuan_v1_dense", "hunyuan-dense")
GGUF = ("hunyuan-dense",)
KEYS = Keys(
    same_as={"attention_head_dim": "head_dim"},
    harmless=frozenset({
        "cla_share_factor", "class_num", "dense_list", "eod_token_id", "im_end_id", "im_newline_id",
        "im_start_id", "mask_init_id", "org_vocab_size", "pad_id", "pool_type",
        "text_end_id", "text_start_id",
    }),
    only={
        "add_classification_head": False, "mlp_bias": False, "norm_type": "rms", "use_cla": False,
        "use_qk_norm": True, "use_rotary_pos_emb": True,
    },
)  # fmt: skip
NAMES = Names(
    gguf={"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}
)
TENSORS: Mapping[str, str] = {
    **ATTENTION,
    "q_norm": "query_layernorm.weight",
    "k_norm": "key_layernorm.weight",
}
UNREAD = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
"""Rope parameters that files carry beside `alpha`, and that no implementation reads."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `HunYuanDenseV1Config`."""

    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    attention_bias: bool = False


def rope(config: Config, context: int) -> RopeTable:
    """Return the table; "dynamic" needs an `alpha`, which makes it a fixed rule."""
    given = dict(config.rope_parameters)
    if given.get("rope_type") == "dynamic" and given.get("alpha"):
        given = {key: value for key, value in given.items() if key not in UNREAD}
        given["rope_type"] = "ntk_alpha"
    return rope_table(replace(config, rope_parameters=given), context)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="hunyuan_v1_dense", eps=config.rms_norm_eps)
    mixer = attention(
        config,
        rope=rope(config, context),
        qk_norm=QKNorm(config.rms_norm_eps, after_rope=True),
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )
    mlp = gated_mlp(config, config.hidden_act)
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, table=TENSORS)
        x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
