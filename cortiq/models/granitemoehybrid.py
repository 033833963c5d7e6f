"""Granite 4: Mamba-2 with attention in some layers, Granite's factors, experts beside one MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import GatedMLP, Mamba2, MoE
from cortiq.models import granite
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config, is_number
from cortiq.models.layer_kinds import GLOBAL, by_layer, layer_list, single_count
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.route import Router

ARCHITECTURES = ("granitemoehybrid", "granitehybrid")
GGUF = ("granitehybrid",)
MAMBA_GGUF_KEYS: Mapping[str, str] = {
    "ssm.conv_kernel": "conv_kernel",
    "ssm.group_count": "n_groups",
    "ssm.inner_size": "inner_size",
    "ssm.state_size": "state_size",
    "ssm.time_step_rank": "mamba_heads",
}
"""Of `MambaGGUF`."""
KEYS = Keys(
    aliases={"layers_block_type": "layer_types"},
    harmless=frozenset({"mamba_chunk_size"}),
    gguf={
        **granite.KEYS.gguf,
        **MAMBA_GGUF_KEYS,
        "expert_shared_feed_forward_length": "shared_intermediate_size",
    },
    gguf_absent={**granite.KEYS.gguf_absent, "logit_scale": 1.0},
    gguf_tensors={
        "attention_bias": "blk.*.attn_q.bias",
        "mamba_conv_bias": "blk.*.ssm_conv1d.bias",
        "mamba_proj_bias": "blk.*.ssm_in.bias",
    },
)
LINEAR = "linear_attention"
OLD_KINDS: Mapping[str, str] = {"mamba": LINEAR, "attention": GLOBAL}
MIXTURE, SHARED, ALONE = "block_sparse_moe", "block_sparse_moe.shared", "shared_mlp"


def _joint(tensor: str, block: str) -> tuple[FusedTensor, FusedTensor]:
    """Return gate and up in one matrix, and the one after them."""
    return (
        FusedTensor(f"{tensor}.input_linear", (f"{block}.gate", f"{block}.up")),
        FusedTensor(f"{tensor}.output_linear", (f"{block}.down",)),
    )


ROLES = ("gate", "up", "down")
MAMBA_GGUF: Mapping[str, str] = {
    "in_proj": "ssm_in", "out_proj": "ssm_out", "conv1d": "ssm_conv1d", "A": "ssm_a", "D": "ssm_d",
    "dt_bias": "ssm_dt.bias", "norm": "ssm_norm",
}  # fmt: skip
"""Tensors of a Mamba-2 mixer, as GGUF files call them."""
NAMES = Names(
    gguf={
        **{f"mamba.{tensor}": own for tensor, own in MAMBA_GGUF.items()},
        f"{MIXTURE}.router.layer": "ffn_gate_inp",
        **{f"{MIXTURE}.experts.{role}": f"ffn_{role}_exps" for role in ROLES},
        **{f"{SHARED}.{role}": f"ffn_{role}_shexp" for role in ROLES},
        **{f"{ALONE}.{role}": f"ffn_{role}" for role in ROLES},
    },
    fused=(
        *_joint(MIXTURE, f"{MIXTURE}.experts"), *_joint(ALONE, SHARED), *_joint(ALONE, ALONE),
    ),
)  # fmt: skip
MLP: Mapping[str, str] = {role: f"{role}.weight" for role in ROLES}
EXPERTS: Mapping[str, str] = {
    "router": "router.layer.weight",
    **{role: f"experts.{role}.weight" for role in ROLES},
    **{f"shared_{role}": f"shared.{role}.weight" for role in ROLES},
}
MAMBA: Mapping[str, str] = {
    "in": "in_proj.weight", "in_bias": "in_proj.bias", "out": "out_proj.weight",
    "out_bias": "out_proj.bias", "conv": "conv1d.weight", "conv_bias": "conv1d.bias",
    "A_log": "A_log", "A": "A", "D": "D", "dt_bias": "dt_bias", "norm": "norm.weight",
}  # fmt: skip
WITHOUT_BOUND = (float("inf"), {"__float__": "Infinity"})


@dataclass(frozen=True, kw_only=True)
class MambaConfig(BaseConfig):
    """Fields of folders with Mamba-2 layers among others."""

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
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
        """Return each layer's mixer: Mamba-2 by default."""
        listed = self.layer_types or (LINEAR,) * self.num_hidden_layers
        listed = tuple(OLD_KINDS.get(kind, kind) for kind in listed)
        return layer_list(listed, self.num_hidden_layers, (GLOBAL, LINEAR))

    def mamba(self) -> Mamba2:
        """Return the mixer of most layers."""
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
            decay_form=decay_form(self),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(granite.Config, MambaConfig):
    """Fields of `GraniteMoeHybridConfig`; `intermediate_size` is that of an expert."""

    num_local_experts: Amount = Amount(8)
    num_experts_per_tok: int = 2
    shared_intermediate_size: int = 1024
    position_embedding_type: str | None = None

    def mixture(self) -> MoE:
        """Return the experts and the shared MLP."""
        return MoE(
            width=self.hidden_size, inner=self.intermediate_size, experts=self.num_local_experts,
            router=Router(self.num_experts_per_tok, "softmax_topk"),
            activation=activation(self.hidden_act), shared_inner=self.shared_intermediate_size,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MambaGGUF(BaseConfig):
    """GGUF fields of models with Mamba-2 layers; layers with KV heads have attention."""

    num_key_value_heads: int | tuple[int, ...] | None = None  # type: ignore[assignment]
    conv_kernel: int = 4
    n_groups: int = 1
    inner_size: int = 0
    state_size: int = 128
    mamba_heads: int = 1

    def attending(self) -> tuple[bool, ...]:
        """Return whether each layer has attention."""
        heads = by_layer(self.num_key_value_heads, self.num_hidden_layers, "head_count_kv")
        return tuple(bool(count) for count in heads)

    def heads(self) -> int | None:
        """Return the number of KV heads of the layers with attention."""
        heads = by_layer(self.num_key_value_heads, self.num_hidden_layers, "head_count_kv")
        return single_count(heads, "head_count_kv")


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(MambaGGUF):
    """Fields of GGUF files; context_length is no limit without rotation."""

    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 0.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    num_local_experts: Amount = Amount(0)
    num_experts_per_tok: Amount = Amount(0)
    shared_intermediate_size: int | None = None
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    turns: bool = True

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        if self.inner_size % self.hidden_size or self.inner_size % self.mamba_heads:
            message = f"{self.mamba_heads} Mamba heads share {self.inner_size} values"
            raise FormatError(message, where=where)
        shared = self.shared_intermediate_size or self.intermediate_size
        return convert_config(
            Config, self, where, num_key_value_heads=self.heads(),
            num_experts_per_tok=self.num_experts_per_tok or 1, shared_intermediate_size=shared,
            layer_types=tuple(GLOBAL if attends else LINEAR for attends in self.attending()),
            position_embedding_type="rope" if self.turns else "nope",
            mamba_n_heads=self.mamba_heads, mamba_n_groups=self.n_groups,
            mamba_d_state=self.state_size, mamba_d_conv=self.conv_kernel,
            mamba_d_head=self.inner_size // self.mamba_heads,
            mamba_expand=self.inner_size // self.hidden_size,
        )  # fmt: skip


def decay_form(config: BaseConfig) -> str:
    """Return the form of a file's decays: plain in GGUF files, logarithms in folders."""
    return "plain" if config.source == "gguf" else "log"


def step_bounds(limit: tuple[object, ...] | None) -> tuple[float | None, float | None]:
    """Return the bounds of Δ in a config's `time_step_limit`, `None` for no bound."""
    low, high, *rest = (*(limit or (0.0, float("inf"))), None, None)
    bounds = [None if bound in WITHOUT_BOUND else bound for bound in (low, high)]
    if len(rest) != 2 or any(b is not None and not is_number(b) for b in bounds):
        message = f"time_step_limit is {limit}, not two numbers"
        raise FormatError(message, where="config")
    lowest, highest = (None if b is None else float(str(b)) for b in bounds)
    return lowest or None, highest


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(
        config, context, family="granitemoehybrid", eps=config.rms_norm_eps,
        residual=config.residual_multiplier,
    )  # fmt: skip
    if config.position_embedding_type not in (None, "nope", "rope"):
        message = f"position_embedding_type {config.position_embedding_type!r}"
        raise UnsupportedError(message, where="config", hint="supported: rope, nope")
    turns = config.position_embedding_type == "rope"
    attend = attention(
        config, scale=config.scale(), biased=config.attention_bias,
        rope=rope_table(config, context) if turns else None, output_biased=config.attention_bias,
        pairing="interleaved" if config.source == "gguf" else "half",
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
            x = decoder.feed_forward(x, n, mlp, tensors=ALONE, table=MLP)
    return decoder.finish(x, multiplier=config.factor())
