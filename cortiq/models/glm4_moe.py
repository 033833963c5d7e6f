"""GLM 4.5, 4.5V and 4.6: half of every head rotated; experts in groups, chosen with a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.images import TEXT_ONLY, ImageRows
from cortiq.ir.layers import Attention, GatedMLP, MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.gguf_keys import ABSENT, BY_SIGMOID, GROUPED_EXPERTS
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, grouped_router
from cortiq.models.rope import rope_table

ARCHITECTURES = ("glm4_moe", "glm4moe", "glm4v_moe_text")
GGUF = ("glm4moe",)
KEYS = Keys(
    defaults={"glm4v_moe_text": {"attention_bias": True, "max_position_embeddings": 65536}},
    gguf=GROUPED_EXPERTS,
    gguf_absent=ABSENT,
    gguf_only=BY_SIGMOID,
    gguf_tensors={
        "attention_bias": "blk.0.attn_q.bias", "use_qk_norm": "blk.0.attn_q_norm.weight",
    },
)  # fmt: skip
NAMES = Names(gguf={"post_attention_layernorm": "post_attention_norm"})


@dataclass(frozen=True, kw_only=True)
class GroupedExperts(BaseConfig):
    """Fields of experts that are chosen in groups, with a bias, beside shared ones."""

    hidden_act: str = "silu"
    n_routed_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 1408
    n_shared_experts: int = 1
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    def experts(self) -> MoE:
        """Return a layer's experts."""
        return MoE(
            width=self.hidden_size,
            inner=self.moe_intermediate_size,
            experts=self.n_routed_experts,
            router=grouped_router(
                self.num_experts_per_tok, self.norm_topk_prob, self.routed_scaling_factor,
                self.n_group, self.topk_group,
            ),
            activation=activation(self.hidden_act),
            selection_bias=True,
            shared_inner=self.moe_intermediate_size * self.n_shared_experts,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(GroupedExperts):
    """Fields of `Glm4MoeConfig`."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    use_qk_norm: bool = False
    first_k_dense_replace: Amount = Amount(1)
    num_nextn_predict_layers: Amount = Amount(0)
    default_turned: ClassVar[float] = 0.5
    family: ClassVar[str] = "glm4_moe"


def build(config: Config, context: int, rows: ImageRows = TEXT_ONLY) -> Program:
    """Build the trunk; one that sees images turns rows by their positions on several axes."""
    width = config.hidden_size
    decoder = Decoder(config, context, family=config.family, eps=config.rms_norm_eps)
    mixer = Attention(
        width=width,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(config, context),
        qk_norm=QKNorm(config.rms_norm_eps) if config.use_qk_norm else None,
        biased=config.attention_bias,
        sections=rows.sections,
    )
    mlp = GatedMLP(width, config.intermediate_size, activation(config.hidden_act))
    experts = config.experts()
    x, axes = decoder.embed(), decoder.axes(rows)
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, others=axes)
        if n < config.first_k_dense_replace:
            x = decoder.feed_forward(x, n, mlp)
        else:
            x = decoder.feed_forward(x, n, experts, table=MOE)
    return decoder.finish(x)
