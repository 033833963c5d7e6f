"""Falcon H1: attention and Mamba-2 side by side in every layer, with a factor on each product."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program, Value
from cortiq.ir.layers import GatedMLP, Gating, Mamba2, Residual
from cortiq.ir.ops import Scale
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.granitemoehybrid import MAMBA, MAMBA_GGUF, ROLES, decay_form, step_bounds
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MLP, Decoder, attention, named
from cortiq.models.rope import rope_table

ARCHITECTURES = ("falcon_h1", "falcon-h1")
GGUF = ("falcon-h1",)
KEYS = Keys(
    harmless=frozenset({
        "attn_layer_indices", "mamba_chunk_size", "mamba_use_mlp", "mlp_expansion_factor",
        "num_logits_to_keep", "time_step_floor", "time_step_max", "time_step_min",
    }),
    only={"attention_bias": False, "hidden_act": "silu", "mlp_bias": False},
    gguf={
        "ssm.conv_kernel": "mamba_d_conv", "ssm.group_count": "mamba_n_groups",
        "ssm.inner_size": "mamba_d_ssm", "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": "mamba_n_heads",
    },
    gguf_tensors={
        "mamba_conv_bias": "blk.*.ssm_conv1d.bias", "mamba_rms_norm": "blk.*.ssm_norm.weight",
    },
)  # fmt: skip
NAMES = Names(
    folder={"model.norm.": "model.final_layernorm."},
    gguf={
        **{f"mamba.{name}": own for name, own in MAMBA_GGUF.items()},
        **{f"feed_forward.{role}_proj": f"ffn_{role}" for role in ROLES},
        "pre_ff_layernorm.weight": "ffn_norm",
    },
)


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `FalconH1Config`; matrices of GGUF files are multiplied by the factors."""

    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5
    mamba_d_ssm: int | None = 1024
    mamba_norm_before_gate: bool = True
    mamba_rms_norm: bool = False
    projectors_bias: bool = False
    lm_head_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    mlp_multipliers: tuple[float, ...] | None = None
    key_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    attention_in_multiplier: float = 1.0
    ssm_multipliers: tuple[float, ...] | None = None
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0
    mamba_n_heads: int = 128
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_head: int | str = "auto"
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[object, ...] | None = None

    def mamba(self) -> Mamba2:
        """Return the state space of every layer."""
        inner, heads = self.mamba_d_ssm or self.mamba_expand * self.hidden_size, self.mamba_n_heads
        head = inner // heads if self.mamba_d_head == "auto" else self.mamba_d_head
        if not isinstance(head, int) or head * heads != inner:
            message = f"mamba_d_head is {head}, but {heads} heads share {inner}"
            raise FormatError(message, where="config")
        low, high = step_bounds(self.time_step_limit)
        folder = self.source != "gguf"
        return Mamba2(
            width=self.hidden_size, heads=heads, head_dim=head, state_dim=self.mamba_d_state,
            groups=self.mamba_n_groups, kernel=self.mamba_d_conv, eps=self.rms_norm_eps,
            norm_groups=self.mamba_n_groups if self.mamba_rms_norm else 1,
            biased=self.mamba_proj_bias, output_biased=self.projectors_bias,
            conv_biased=self.mamba_conv_bias, step_low=low, step_high=high,
            normed=self.mamba_rms_norm, scales=self.factors("ssm_multipliers", 5),
            gates_last=self.mamba_rms_norm and self.mamba_norm_before_gate and folder,
            decay_form=decay_form(self),
        )  # fmt: skip

    def factors(self, name: str, count: int) -> tuple[float, ...]:
        """Return a list of factors, each 1 where there is none."""
        given = getattr(self, name) or (1.0,) * count
        if len(given) != count:
            raise FormatError(f"{name} has {len(given)} numbers, not {count}", where="config")
        return given


def scaled(decoder: Decoder, x: Value, by: float, name: str) -> Value:
    """Write x times a factor."""
    return x if by == 1.0 else decoder.builder.add(Scale(by), x, name=name)


def build(config: Config, context: int) -> Program:
    """Build the trunk: silu(f·g) is f·g·σ(f·g), whose first factor goes to the MLP's output."""
    decoder = Decoder(config, context, family="falcon_h1", eps=config.rms_norm_eps)
    gate, down = config.factors("mlp_multipliers", 2)
    if gate < 0:
        raise UnsupportedError(f"mlp_multipliers begin with {gate}", where="config")
    scale = config.key_multiplier * config.head_width**-0.5
    attend = attention(config, rope=rope_table(config, context), scale=scale)
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, Gating(steepness=gate))
    mamba, add = config.mamba(), decoder.builder.add
    x = decoder.embed(config.embedding_multiplier)
    for n in range(config.num_hidden_layers):
        here, file = f"layers.{n}", f"model.layers.{n}"
        row = decoder.norm(x, f"{here}.norm", f"{file}.input_layernorm")
        inner = scaled(decoder, row, config.ssm_in_multiplier, f"{here}.mamba_in")
        slots = {role: f"{here}.{role}" for role in mamba.slot_kinds()}
        weights = named(mamba, f"{file}.mamba", MAMBA)
        space = add(mamba, inner, name=f"{here}.mamba", weights=weights, slots=slots)
        inner = scaled(decoder, row, config.attention_in_multiplier, f"{here}.attention_in")
        weights = named(attend, f"{file}.self_attn", ATTENTION)
        seen = add(
            attend, inner, decoder.position, name=f"{here}.attention", weights=weights,
            slots={"kv": f"{here}.kv"},
        )  # fmt: skip
        x = add(Residual(config.ssm_out_multiplier), x, space, name=f"{here}.placed")
        x = add(Residual(config.attention_out_multiplier), x, seen, name=f"{here}.middle")
        row = decoder.norm(x, f"{here}.mlp_norm", f"{file}.pre_ff_layernorm")
        y = add(mlp, row, name=f"{here}.mlp", weights=named(mlp, f"{file}.feed_forward", MLP))
        x = add(Residual(gate * down), x, y, name=f"{here}.out")
    return decoder.finish(x, multiplier=config.lm_head_multiplier)
