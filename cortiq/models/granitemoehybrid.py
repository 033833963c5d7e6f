"""Granite 4: Mamba-2 with attention in some layers, Granite's factors, experts beside one MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import GatedMLP, Mamba2, MoE
from cortiq.models import granite
from cortiq.models.config import Amount, Keys, is_number
from cortiq.models.layer_kinds import GLOBAL, layer_list
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.pieces import Fused
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("granitemoehybrid",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(aliases={"layers_block_type": "layer_types"}, harmless=frozenset({"mamba_chunk_size"}))
LINEAR = "linear_attention"
OLD_KINDS: Mapping[str, str] = {"mamba": LINEAR, "attention": GLOBAL}
MIXTURE, SHARED = "block_sparse_moe", "block_sparse_moe.shared"


def _joint(tensor: str, block: str) -> tuple[Fused, Fused]:
    """Gate and up in one matrix, and the one after them."""
    return (
        Fused(f"{tensor}.input_linear", (f"{block}.gate", f"{block}.up")),
        Fused(f"{tensor}.output_linear", (f"{block}.down",)),
    )


NAMES = Names(fused=(*_joint(MIXTURE, f"{MIXTURE}.experts"), *_joint("shared_mlp", SHARED)))
ROLES = ("gate", "up", "down")
MLP: Mapping[str, str] = {role: f"{role}.weight" for role in ROLES}
EXPERTS: Mapping[str, str] = {
    "router": "router.layer.weight",
    **{role: f"experts.{role}.weight" for role in ROLES},
    **{f"shared_{role}": f"shared.{role}.weight" for role in ROLES},
}
MAMBA: Mapping[str, str] = {
    "in": "in_proj.weight", "in_bias": "in_proj.bias", "out": "out_proj.weight",
    "out_bias": "out_proj.bias", "conv": "conv1d.weight", "conv_bias": "conv1d.bias",
    "A_log": "A_log", "D": "D", "dt_bias": "dt_bias", "norm": "norm.weight",
}  # fmt: skip
WITHOUT_BOUND = (float("inf"), {"__float__": "Infinity"})


@dataclass(frozen=True, kw_only=True)
class Config(granite.Config):
    """Fields of `GraniteMoeHybridConfig`; `intermediate_size` is that of an expert."""

    num_local_experts: Amount = Amount(8)
    num_experts_per_tok: int = 2
    shared_intermediate_size: int = 1024
    position_embedding_type: str | None = None
    layer_types: tuple[str, ...] | None = None
    mamba_n_heads: int = 128
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_head: int | str = "auto"
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: tuple[object, ...] | None = None

    def kinds(self) -> tuple[str, ...]:
        """What mixes each layer: Mamba-2 by default."""
        listed = self.layer_types or (LINEAR,) * self.num_hidden_layers
        listed = tuple(OLD_KINDS.get(kind, kind) for kind in listed)
        return layer_list(listed, self.num_hidden_layers, (GLOBAL, LINEAR))

    def mamba(self) -> Mamba2:
        """The mixer of most layers."""
        inner = self.mamba_expand * self.hidden_size
        head = inner // self.mamba_n_heads if self.mamba_d_head == "auto" else self.mamba_d_head
        if not isinstance(head, int) or head * self.mamba_n_heads != inner:
            message = f"mamba_d_head is {head}, but {self.mamba_n_heads} heads share {inner}"
            raise FormatError(message, where="config")
        low, high = step_bounds(self.time_step_limit)
        return Mamba2(
            width=self.hidden_size, heads=self.mamba_n_heads, head_dim=head,
            state_dim=self.mamba_d_state, groups=self.mamba_n_groups, kernel=self.mamba_d_conv,
            eps=self.rms_norm_eps, activation=activation(self.hidden_act),
            norm_groups=self.mamba_n_groups, biased=self.mamba_proj_bias,
            conv_biased=self.mamba_conv_bias, step_low=low, step_high=high,
        )  # fmt: skip

    def mixture(self) -> MoE:
        """Experts, and the MLP that every token passes."""
        return MoE(
            width=self.hidden_size, inner=self.intermediate_size, experts=self.num_local_experts,
            router=Router(self.num_experts_per_tok, "softmax_topk"),
            activation=activation(self.hidden_act), shared_inner=self.shared_intermediate_size,
        )  # fmt: skip


def step_bounds(limit: tuple[object, ...] | None) -> tuple[float | None, float | None]:
    """What Δ is kept within by a config's `time_step_limit`, `None` where nothing bounds it."""
    low, high, *rest = (*(limit or (0.0, float("inf"))), None, None)
    bounds = [None if bound in WITHOUT_BOUND else bound for bound in (low, high)]
    if len(rest) != 2 or any(b is not None and not is_number(b) for b in bounds):
        message = f"time_step_limit is {limit}, not two numbers"
        raise FormatError(message, where="config")
    lowest, highest = (None if b is None else float(str(b)) for b in bounds)
    return lowest or None, highest


def build(config: Config, context: int) -> Program:
    """The trunk."""
    decoder = Decoder(
        config, context, family="granitemoehybrid", eps=config.rms_norm_eps,
        residual=config.residual_multiplier,
    )  # fmt: skip
    if config.position_embedding_type not in (None, "nope", "rope"):
        message = f"position_embedding_type {config.position_embedding_type!r}"
        raise UnsupportedError(message, where="config", hint="supported: rope, nope")
    turns = config.position_embedding_type == "rope"
    attend = attention(
        config, scale=config.attention_multiplier, biased=config.attention_bias,
        rope=rope_table(config, context) if turns else None, output_biased=config.attention_bias,
    )  # fmt: skip
    act, mamba, width = activation(config.hidden_act), config.mamba(), config.hidden_size
    x = decoder.embed(config.embedding_multiplier)
    for n, kind in enumerate(config.kinds()):
        if kind == LINEAR:
            x = decoder.mixer(x, n, mamba, name="mamba", tensors="mamba", table=MAMBA)
        else:
            x = decoder.mixer(x, n, attend)
        if config.num_local_experts:
            x = decoder.feed_forward(x, n, config.mixture(), tensors=MIXTURE, table=EXPERTS)
        else:
            mlp = GatedMLP(width, config.shared_intermediate_size, act)
            x = decoder.feed_forward(x, n, mlp, tensors=SHARED, table=MLP)
    return decoder.finish(x, multiplier=config.factor())
