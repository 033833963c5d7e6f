"""Nemotron H: one mixer a layer, with one norm: Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Op, Program
from cortiq.ir.layers import MLP, Mamba2, MoE
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.granitemoehybrid import LINEAR, MAMBA, OLD_KINDS
from cortiq.models.layer_kinds import GLOBAL, layer_list
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MOE, Decoder, activation, attention
from cortiq.models.parts import MLP as MLP_TENSORS
from cortiq.numerics.route import Router

ARCHITECTURES = ("nemotron_h",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(
    harmless=frozenset({
        "chunk_size", "expand", "hidden_dropout", "mamba_ssm_cache_dtype",
        "moe_shared_expert_overlap", "mtp_layers_block_type", "num_logits_to_keep",
        "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_max",
        "mamba_proj_bias", "time_step_limit", "use_mamba_kernels",
    }),
    only={"attention_bias": False, "n_shared_experts": 1, "num_nextn_predict_layers": 0},
)  # fmt: skip
NAMES = Names(
    folder={
        "model.layers.": "backbone.layers.", "model.embed_tokens.": "backbone.embeddings.",
        "model.norm.": "backbone.norm_f.",
    },
)  # fmt: skip
KINDS = (LINEAR, GLOBAL, "moe", "mlp")
EXPERTS: Mapping[str, str] = {
    **MOE, "latent_in": "fc1_latent_proj.weight", "latent_out": "fc2_latent_proj.weight",
    "latent_in_bias": "fc1_latent_proj.bias", "latent_out_bias": "fc2_latent_proj.bias",
}  # fmt: skip
LETTERS: Mapping[str, str] = {"M": LINEAR, "*": GLOBAL, "E": "moe", "-": "mlp"}
"""Of `hybrid_override_pattern`."""
FLOOR = 1e-20
"""Added to the sum that weights are divided by."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `NemotronHConfig`; the list of layers says how many there are."""

    num_hidden_layers: int = 0
    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    max_position_embeddings: int = 4096
    layer_norm_epsilon: float = 1e-5
    layers_block_type: tuple[str, ...] | None = None
    hybrid_override_pattern: str | None = None
    mlp_hidden_act: str = "relu2"
    mlp_bias: bool = False
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    mamba_hidden_act: str = "silu"
    use_bias: bool = False
    ssm_state_size: int = 128
    n_groups: int = 8
    conv_kernel: int = 4
    use_conv_bias: bool = True
    time_step_min: float = 0.001
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 7688
    moe_shared_expert_intermediate_size: int = 7688
    moe_latent_size: int | None = None
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    def __post_init__(self) -> None:
        """Count the layers; a number that says otherwise is an error."""
        listed = len(self.layers())
        if self.num_hidden_layers not in (0, listed):
            message = f"num_hidden_layers is {self.num_hidden_layers}, but {listed} are listed"
            raise FormatError(message, where="config")
        object.__setattr__(self, "num_hidden_layers", listed)

    def layers(self) -> tuple[str, ...]:
        """What every layer is, as a list or a pattern of letters says it."""
        if self.layers_block_type is not None:
            return tuple(OLD_KINDS.get(kind, kind) for kind in self.layers_block_type)
        return tuple(LETTERS.get(letter, letter) for letter in self.hybrid_override_pattern or "")

    def kinds(self) -> tuple[str, ...]:
        """The same, checked."""
        listed = self.layers()
        if not listed:
            raise FormatError("layers_block_type is missing", where="config")
        return layer_list(listed, len(listed), KINDS, "layers_block_type")

    def mamba(self) -> Mamba2:
        """The mixer of most layers."""
        return Mamba2(
            width=self.hidden_size, heads=self.mamba_num_heads, head_dim=self.mamba_head_dim,
            state_dim=self.ssm_state_size, groups=self.n_groups, kernel=self.conv_kernel,
            eps=self.layer_norm_epsilon, activation=activation(self.mamba_hidden_act),
            norm_groups=self.n_groups, biased=self.use_bias,
            conv_biased=self.use_conv_bias, step_low=self.time_step_min,
        )  # fmt: skip

    def experts(self) -> MoE:
        """Plain experts, and one for every token."""
        router = Router(
            self.num_experts_per_tok, "sigmoid", renormalise=self.norm_topk_prob,
            denominator_floor=FLOOR, routed_scaling=self.routed_scaling_factor,
            groups=self.n_group, kept_groups=self.topk_group, group_score="top2",
        )  # fmt: skip
        return MoE(
            width=self.hidden_size, inner=self.moe_intermediate_size,
            experts=self.n_routed_experts, router=router, selection_bias=True, gated=False,
            activation=activation(self.mlp_hidden_act), shared_biased=self.mlp_bias,
            shared_inner=self.moe_shared_expert_intermediate_size,
            latent=self.moe_latent_size or 0,
            latent_biased=self.mlp_bias and bool(self.moe_latent_size),
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """The trunk: nothing is rotated."""
    decoder = Decoder(config, context, family="nemotron_h", eps=config.layer_norm_epsilon)
    act, width = activation(config.mlp_hidden_act), config.hidden_size
    mixers: dict[str, tuple[str, Op, Mapping[str, str]]] = {
        LINEAR: ("mamba", config.mamba(), MAMBA),
        GLOBAL: ("attention", attention(config), ATTENTION),
        "moe": ("mlp", config.experts(), EXPERTS),
        "mlp": ("mlp", MLP(width, config.intermediate_size, act, config.mlp_bias), MLP_TENSORS),
    }
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        name, op, table = mixers[kind]
        x = decoder.mixer(
            x, n, op, name=name, tensors="mixer", table=table, before="norm", out="out"
        )
    return decoder.finish(x)
