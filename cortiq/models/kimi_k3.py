"""Kimi K3: Kimi Linear whose branches read mixes of earlier sums; experts in a latent space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program, Value
from cortiq.ir.layers import KDA, AttentionResidual, GatedMLP, Gating, LatentAttention, MoE
from cortiq.models import kimi_linear
from cortiq.models.config import Amount, BaseConfig, is_number
from cortiq.models.kimi_delta import DELTA as DELTA_NAMES
from cortiq.models.kimi_linear import SPARSE
from cortiq.models.mixtral import EXPERTS
from cortiq.models.mla import latent_attention
from cortiq.models.mla import names_of as names_of_latent
from cortiq.models.names import Names
from cortiq.models.parts import MLP, MOE, Decoder
from cortiq.models.qwen3_next import LINEAR
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("kimi_k3_text", "kimi-k3")
GGUF = ("kimi-k3",)
KEYS = replace(
    kimi_linear.KEYS,
    only={**kimi_linear.KEYS.only, "topk_method": "noaux_tc"},
    gguf={
        **kimi_linear.KEYS.gguf, "activation.situ_beta": "activation_situ_beta",
        "activation.situ_linear_beta": "activation_situ_linear_beta",
        "attn_res.block_size": "attn_res_block_size",
        "expert_latent_length": "routed_expert_hidden_size",
        "kda.gate_lower_bound": "gate_lower_bound",
    },
    gguf_tensors={
        "latent_moe_use_norm": "blk.*.ffn_routed_norm.weight",
        "mla_use_output_gate": "blk.*.attn_gate.weight",
    },
)  # fmt: skip
GATE, SCORES = "self_attn.output_gate", ("self_attention_res", "mlp_res")
LAST = "model.output_attn_res"
NAMES = Names(
    fused=(
        *kimi_linear.NAMES.fused,
        # gates of both kinds of layers have one name, which GGUF files tell apart
        FusedTensor("self_attn.g_proj", (GATE,)),
        FusedTensor("self_attn.A_log", ("self_attn.A_log",), bare=True, padded=True),
    ),
    joined=kimi_linear.NAMES.joined,
    gguf={
        **kimi_linear.NAMES.gguf, "self_attn.g_proj": "ssm_g", GATE: "attn_gate",
        **{f"{SPARSE}.routed_expert_{part}": f"ffn_routed_{end}"
           for part, end in (("down_proj", "down"), ("up_proj", "up"), ("norm", "norm"))},
        f"{SCORES[0]}_proj": "attn_res_score", f"{SCORES[1]}_proj": "ffn_res_score",
        f"{LAST}_proj": "output_res_score",
    },
    unread=rf"model\.layers\.0\.{SCORES[0]}_(norm|proj)\.weight|blk\.0\.attn_res_score\.weight",
)  # fmt: skip
TENSORS: Mapping[str, str] = {
    **MOE, **EXPERTS, "latent_in": "routed_expert_down_proj.weight",
    "latent_out": "routed_expert_up_proj.weight", "latent_norm": "routed_expert_norm.weight",
}  # fmt: skip
"""Roles of `MoE` to tensor names."""
DELTA: Mapping[str, str] = {**DELTA_NAMES, "g": "g_proj.weight"}
SITU = "situ"
"""`hidden_act` of a gate β·tanh(g/β)·σ(g) and its row γ·tanh(u/γ)."""


@dataclass(frozen=True, kw_only=True)
class _Options(BaseConfig):
    """Fields of folders and of GGUF files.

    Attributes
    ----------
    routed_expert_hidden_size : width that the experts read and write; None for the model's.
    """

    hidden_act: str = SITU
    routed_expert_hidden_size: int | None = None
    latent_moe_use_norm: bool = False
    mla_use_output_gate: bool = False
    gate_lower_bound: float | None = None


@dataclass(frozen=True, kw_only=True)
class Config(_Options, kimi_linear.Config):
    """Fields of the text model; `linear_attn_config` holds the bound of its decays, too.

    Attributes
    ----------
    activation_situ_beta, activation_situ_linear_beta : β and γ of `SITU`; without γ, or if it is
        not above 0, u is multiplied as it is.
    attn_res_block_size : layers after which a sum is kept and begins anew; None or 0 for residuals
        that are added only.
    """

    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float | None = 25.0
    attn_res_block_size: Amount | None = None
    more_inner: ClassVar[frozenset[str]] = frozenset({"gate_lower_bound", "use_full_rank_gate"})
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "gate_lower_bound"})

    @property
    def convolved(self) -> str:
        """The activation of convolved rows, whatever that of MLPs is."""
        return "silu"

    @property
    def act(self) -> str | Gating:
        """Function that joins gate and row of every MLP."""
        if self.hidden_act != SITU:
            return super().act
        linear = self.activation_situ_linear_beta or 0.0
        return Gating(gate_cap=self.activation_situ_beta, up_cap=linear if linear > 0 else None)

    def delta(self) -> KDA:
        """Return the mixer of most layers, whose decays have a bound if the file says so.

        Raises
        ------
        FormatError : a bound that is no number, or a switch that is none.
        """
        inner = self.linear_attn_config or {}
        bound = inner.get("gate_lower_bound", self.gate_lower_bound)
        whole = inner.get("use_full_rank_gate", self.source == "gguf")
        if not (bound is None or is_number(bound)) or type(whole) is not bool:
            message = f"gate_lower_bound is {bound!r}, use_full_rank_gate {whole!r}"
            raise FormatError(message, where="linear_attn_config")
        delta = super().delta()
        return replace(delta, decay_bound=bound, gate_rank=0 if whole else delta.gate_rank)

    def latent(self) -> LatentAttention:
        """Return the attention of the other layers, which rotates nothing."""
        gated = self.mla_use_output_gate
        return replace(latent_attention(self, None), gated=gated, gate_each=gated)

    def experts(self) -> MoE:
        """Return the experts; the shared ones read the row itself."""
        eps = self.rms_norm_eps if self.latent_moe_use_norm else None
        latent = self.routed_expert_hidden_size or 0
        return replace(super().experts(), latent=latent, latent_norm=eps)


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(_Options, kimi_linear.GGUFConfig):
    """Fields of GGUF files, which say all of these."""

    activation_situ_beta: float
    activation_situ_linear_beta: float
    attn_res_block_size: Amount
    config_type: ClassVar[type[kimi_linear.Config]] = Config


class _KeptSums:
    """The sums of branches so far: those that blocks of layers left, and how branches read them."""

    def __init__(self, decoder: Decoder, config: Config) -> None:
        self.decoder, self.config, self.kept = decoder, config, list[Value]()
        self.size = config.attn_res_block_size or 0

    def read(self, x: Value, name: str, tensors: str) -> Value:
        """Write the mix of the kept sums and the current one, if there are any others."""
        rows: Sequence[Value] = (*self.kept, x)
        if len(rows) == 1:
            return x
        config = self.config
        weighted = config.source != "gguf"
        op = AttentionResidual(len(rows), config.hidden_size, config.rms_norm_eps, weighted)
        ends = {"norm": "norm.weight", "score": "proj.weight"}
        weights = {role: f"{tensors}_{ends[role]}" for role in op.weight_shapes()}
        return self.decoder.builder.add(op, *rows, name=name, weights=weights)

    def begin(self, x: Value, layer: int) -> Value | None:
        """Return the sum that a layer's first branch is added to; None where a new one begins."""
        if not self.size or layer % self.size:
            return x
        self.kept.append(x)
        return None


def build(config: Config, context: int) -> Program:
    """Build the trunk; nothing is rotated."""
    decoder = Decoder(config, context, family="kimi_k3", eps=config.rms_norm_eps)
    attend, delta, experts = config.latent(), config.delta(), config.experts()
    names = {**names_of_latent(config), "gate": f"{GATE.partition('.')[2]}.weight"}
    mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.act)
    sums, x = _KeptSums(decoder, config), decoder.embed()
    for n, (kind, sparse) in enumerate(zip(config.kinds(), config.sparse(), strict=True)):
        file, here = f"model.layers.{n}", f"layers.{n}"
        read = sums.read(x, f"{here}.attention_mix", f"{file}.{SCORES[0]}")
        start = sums.begin(x, n)
        if kind == LINEAR:
            x = decoder.mixer(start, n, delta, name="delta", table=DELTA, read=read)
        else:
            x = decoder.mixer(start, n, attend, table=names, read=read)
        read = sums.read(x, f"{here}.mlp_mix", f"{file}.{SCORES[1]}")
        if sparse:
            x = decoder.feed_forward(x, n, experts, tensors=SPARSE, table=TENSORS, read=read)
        else:
            x = decoder.feed_forward(x, n, mlp, table=MLP, read=read)
    return decoder.finish(sums.read(x, "mix", LAST))
