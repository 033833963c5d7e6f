"""HunYuan MoE (A13B): HunYuan's attention with experts, and one MLP that every token passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models import hunyuan_v1_dense
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.parts import MLP, MOE, Decoder, activation, attention
from cortiq.numerics.route import Router

ARCHITECTURES = ("hunyuan_v1_moe", "hunyuan-moe")
GGUF = ("hunyuan-moe",)
DENSE = hunyuan_v1_dense.KEYS
KEYS = Keys(
    aliases={"num_local_experts": "num_experts", "num_experts_per_tok": "moe_topk"},
    same_as=DENSE.same_as,
    harmless=DENSE.harmless | {"capacity_factor", "group_limited_greedy", "moe_drop_tokens",
                               "moe_random_routing_dropped_token", "norm_topk_prob"},
    only={**DENSE.only, "moe_layer_num_skipped": 0, "use_mixed_mlp_moe": True},
    gguf={
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_inner",
        "expert_used_count": "moe_topk",
    },
)  # fmt: skip
NAMES = Names(
    gguf={
        **hunyuan_v1_dense.NAMES.gguf,
        "mlp.gate.wg": "ffn_gate_inp",
        "mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
        "mlp.shared_mlp.up_proj": "ffn_up_shexp",
        "mlp.shared_mlp.down_proj": "ffn_down_shexp",
    }
)
EXPERTS: Mapping[str, str] = {
    **MOE,
    "router": "gate.wg.weight",
    **{f"shared_{role}": f"shared_mlp.{tensor}" for role, tensor in MLP.items()},
}
Counts = int | tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class Config(hunyuan_v1_dense.Config):
    """Fields of `HunYuanMoEV1Config` and of its published files, which list counts by layer.

    Attributes
    ----------
    shared_inner : width of the MLP that every token passes, as GGUF files give it.
    """

    num_experts: int
    moe_topk: Counts = 1
    moe_intermediate_size: Counts = None
    num_shared_expert: Counts = None
    shared_inner: int | None = None

    def single(self, name: str, otherwise: int) -> int:
        """Return a count that is the same in every layer."""
        given = getattr(self, name)
        found = set(given if isinstance(given, tuple) else (given or otherwise,))
        if len(found) != 1 or 0 in found:
            raise UnsupportedError(f"{name} differs by layer: {sorted(found)}", where="config")
        return int(found.pop())


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="hunyuan_v1_moe", eps=config.rms_norm_eps)
    mixer = attention(
        config,
        rope=hunyuan_v1_dense.rope(config, context),
        qk_norm=QKNorm(config.rms_norm_eps, after_rope=True),
        biased=config.attention_bias,
        output_biased=config.attention_bias,
    )
    shared = config.intermediate_size * config.single("num_shared_expert", 1)
    experts = MoE(
        width=config.hidden_size,
        inner=config.single("moe_intermediate_size", config.intermediate_size),
        experts=config.num_experts,
        router=Router(config.single("moe_topk", 1), renormalise=True),
        activation=activation(config.hidden_act),
        shared_inner=config.shared_inner or shared,
    )
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, table=hunyuan_v1_dense.TENSORS)
        x = decoder.feed_forward(x, n, experts, table=EXPERTS)
    return decoder.finish(x)
