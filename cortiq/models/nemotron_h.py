"""Nemotron H: one mixer a layer, with one norm: Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError
from cortiq.ir import Op, Program
from cortiq.ir.layers import MLP, Mamba2, MoE
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.gguf_keys import ABSENT
from cortiq.models.granitemoehybrid import (
    LINEAR,
    MAMBA,
    MAMBA_GGUF,
    MAMBA_GGUF_KEYS,
    OLD_KINDS,
    MambaGGUF,
    decay_form,
)
from cortiq.models.layer_kinds import GLOBAL, by_layer, layer_list, single_count
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MOE, Decoder, activation, attention
from cortiq.models.parts import MLP as MLP_TENSORS
from cortiq.numerics.route import Router

ARCHITECTURES = ("nemotron_h", "nemotron_h_moe")
GGUF = ("nemotron_h", "nemotron_h_moe")
KEYS = Keys(
    harmless=frozenset({
        "chunk_size", "expand", "hidden_dropout", "mamba_ssm_cache_dtype",
        "moe_shared_expert_overlap", "mtp_hybrid_override_pattern", "mtp_layers_block_type",
        "num_logits_to_keep",
        "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_max",
        "mamba_proj_bias", "time_step_limit", "use_mamba_kernels",
    }),
    only={"attention_bias": False, "n_shared_experts": 1},
    gguf={
        **MAMBA_GGUF_KEYS, "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "expert_count": "n_routed_experts", "expert_feed_forward_length": "moe_intermediate_size",
        "expert_group_count": "n_group", "expert_group_used_count": "topk_group",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "expert_weights_norm": "norm_topk_prob", "expert_weights_scale": "routed_scaling_factor",
        "moe_latent_size": "moe_latent_size", "nextn_predict_layers": "num_nextn_predict_layers",
    },
    gguf_absent=ABSENT,
    gguf_only={
        "expert_gating_func": 2, "expert_shared_count": 1, "attention.layer_norm_epsilon": 1e-5,
    },
    gguf_tensors={
        "mlp_bias": "blk.*.ffn_up.bias", "use_bias": "blk.*.ssm_in.bias",
        "use_conv_bias": "blk.*.ssm_conv1d.bias",
    },
)  # fmt: skip
NAMES = Names(
    folder={
        "model.layers.": "backbone.layers.", "model.embed_tokens.": "backbone.embeddings.",
        "model.norm.": "backbone.norm_f.",
    },
    gguf={
        "norm": "attn_norm", **{f"mixer.{tensor}": own for tensor, own in MAMBA_GGUF.items()},
        **{f"mixer.{part}_proj": f"attn_{part}" for part in "qkv"}, "mixer.o_proj": "attn_output",
        "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down", "mixer.gate": "ffn_gate_inp",
        "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
        "mixer.experts.up_proj": "ffn_up_exps", "mixer.experts.down_proj": "ffn_down_exps",
        "mixer.shared_experts.up_proj": "ffn_up_shexp",
        "mixer.shared_experts.down_proj": "ffn_down_shexp",
        "mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up",
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
    """Fields of `NemotronHConfig`; the list of layers gives their number."""

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
    num_nextn_predict_layers: Amount = Amount(0)

    def __post_init__(self) -> None:
        """Count the layers; a number that says otherwise is an error."""
        listed = len(self.layers())
        if self.num_hidden_layers not in (0, listed):
            message = f"num_hidden_layers is {self.num_hidden_layers}, but {listed} are listed"
            raise FormatError(message, where="config")
        object.__setattr__(self, "num_hidden_layers", listed)

    def layers(self) -> tuple[str, ...]:
        """Return each layer's kind, from a list or a pattern of letters."""
        if self.layers_block_type is not None:
            return tuple(OLD_KINDS.get(kind, kind) for kind in self.layers_block_type)
        return tuple(LETTERS.get(letter, letter) for letter in self.hybrid_override_pattern or "")

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's kind, checked."""
        listed = self.layers()
        if not listed:
            raise FormatError("layers_block_type is missing", where="config")
        return layer_list(listed, len(listed), KINDS, "layers_block_type")

    def mamba(self) -> Mamba2:
        """Return the mixer of most layers; GGUF files bound no step, as llama.cpp does not."""
        return Mamba2(
            width=self.hidden_size, heads=self.mamba_num_heads, head_dim=self.mamba_head_dim,
            state_dim=self.ssm_state_size, groups=self.n_groups, kernel=self.conv_kernel,
            eps=self.layer_norm_epsilon, activation=activation(self.mamba_hidden_act),
            norm_groups=self.n_groups, biased=self.use_bias,
            conv_biased=self.use_conv_bias, decay_form=decay_form(self),
            step_low=None if self.source == "gguf" else self.time_step_min,
        )  # fmt: skip

    def experts(self) -> MoE:
        """Return the experts, which are plain MLPs, and a shared one."""
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


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(MambaGGUF):
    """Fields of GGUF files: layers with KV heads have attention, those with a width an MLP or
    experts.
    """

    intermediate_size: int | tuple[int, ...] = 0  # type: ignore[assignment]
    head_dim: int | None = 128
    layer_norm_epsilon: float = 1e-5
    mlp_bias: bool = False
    use_bias: bool = False
    use_conv_bias: bool = True
    n_routed_experts: Amount = Amount(0)
    num_experts_per_tok: int = 1
    moe_intermediate_size: int = 1
    moe_shared_expert_intermediate_size: int = 1
    moe_latent_size: int | None = None
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    num_nextn_predict_layers: Amount = Amount(0)

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        count, heads = self.num_hidden_layers, self.mamba_heads
        if self.inner_size % heads:
            message = f"{heads} Mamba heads share {self.inner_size} values"
            raise FormatError(message, where=where)
        widths = by_layer(self.intermediate_size, count, "feed_forward_length")
        feeds = "moe" if self.n_routed_experts else "mlp"
        kinds = tuple(
            GLOBAL if attends else feeds if width else LINEAR
            for attends, width in zip(self.attending(), widths, strict=True)
        )
        return convert_config(
            Config, self, where, num_key_value_heads=self.heads(), layers_block_type=kinds,
            intermediate_size=single_count(widths, "feed_forward_length") or 1,
            n_routed_experts=self.n_routed_experts or 1, mamba_num_heads=heads,
            mamba_head_dim=self.inner_size // heads, ssm_state_size=self.state_size,
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk; nothing is rotated."""
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
