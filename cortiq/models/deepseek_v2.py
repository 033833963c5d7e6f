"""DeepSeek V2: latent attention, experts chosen by softmax, within groups if the file says so."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import GatedMLP, MoE
from cortiq.models.config import Amount, Keys
from cortiq.models.mla import JOINT, LatentConfig, latent_attention, names_of
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("deepseek_v2",)
GGUF: tuple[str, ...] = ()
"""`deepseek2` reads these."""
KEYS = Keys(
    same_as={"head_dim": "qk_rope_head_dim"},
    harmless=frozenset({"aux_loss_alpha", "ep_size", "seq_aux"}),
    only={"moe_layer_freq": 1, "norm_topk_prob": False, "scoring_func": "softmax"},
)
NAMES = Names(fused=(JOINT,))
METHODS = ("greedy", "group_limited_greedy")


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig):
    """Fields of `DeepseekV2Config`."""

    mlp_bias: bool = False
    n_routed_experts: int = 64
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int = 1407
    n_shared_experts: int = 2
    topk_method: str = "greedy"
    n_group: int | None = None
    topk_group: int | None = None
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: Amount = Amount(0)

    def router(self) -> Router:
        """Return the router's options."""
        if self.topk_method not in METHODS:
            hint = f"supported: {', '.join(METHODS)}"
            raise UnsupportedError(f"topk_method {self.topk_method!r}", where="config", hint=hint)
        if self.num_experts_per_tok is None:
            raise FormatError("num_experts_per_tok is missing", where="config")
        limited = self.topk_method == "group_limited_greedy"
        if limited and (self.n_group is None or self.topk_group is None):
            raise FormatError("n_group and topk_group are missing", where="config")
        return Router(
            self.num_experts_per_tok,
            routed_scaling=self.routed_scaling_factor,
            groups=(self.n_group or 1) if limited else 1,
            kept_groups=(self.topk_group or 1) if limited else 1,
        )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, act = config.hidden_size, activation(config.hidden_act)
    decoder = Decoder(config, context, family="deepseek_v2", eps=config.rms_norm_eps)
    mixer, names = latent_attention(config, rope_table(config, context)), names_of(config)
    mlp = GatedMLP(width, config.intermediate_size, act, config.mlp_bias)
    experts = MoE(
        width=width,
        inner=config.moe_intermediate_size,
        experts=config.n_routed_experts,
        router=config.router(),
        activation=act,
        shared_inner=config.moe_intermediate_size * config.n_shared_experts,
        shared_biased=config.mlp_bias,
    )
    x = decoder.embed()
    for n in range(config.num_hidden_layers):
        x = decoder.mixer(x, n, mixer, table=names)
        if n < config.first_k_dense_replace:
            x = decoder.feed_forward(x, n, mlp)
        else:
            x = decoder.feed_forward(x, n, experts, table=MOE)
    return decoder.finish(x)
