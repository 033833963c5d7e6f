"""Qwen 3 Next: gated delta nets and gated attention in turns, experts with a gated shared one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cortiq.errors import FormatError
from cortiq.ir import Program
from cortiq.ir.layers import Attention, GatedDeltaNet, GatedMLP, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, is_stepped_sparse, layer_list
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, norm_offset
from cortiq.models.qwen2_moe import EXPERTS, SHARED_EXPERT, experts_of
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.rope import Sections

ARCHITECTURES = ("qwen3_next", "qwen3next")
GGUF = ("qwen3next",)
LINEAR = "linear_attention"
GGUF_KEYS: Mapping[str, str] = {
    "attention.sliding_window": "",
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "full_attention_interval": "full_attention_interval",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.inner_size": "linear_values",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.time_step_rank": "linear_num_value_heads",
}
GGUF_NAMES: Mapping[str, str] = {
    **SHARED_EXPERT,
    "post_attention_layernorm": "post_attention_norm",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "linear_attn.in_proj_qkvz": "ssm_in",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
GATE_UP = FusedTensor("mlp.experts.gate_up_proj", ("mlp.experts.gate_proj", "mlp.experts.up_proj"))
HEAD_NOTES = frozenset({
    "mamba_ssm_dtype", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
})  # fmt: skip
"""Keys about states, which are always float32, and about tensors that a file has or has not."""
ONLY: Mapping[str, Any] = {
    "attn_output_gate": True, "mlp_only_layers": [], "output_gate_type": "swish",
    "use_sliding_window": False,
}  # fmt: skip
KEYS = Keys(
    aliases={"num_local_experts": "num_experts"},
    harmless=HEAD_NOTES,
    only=ONLY,
    gguf=GGUF_KEYS,
    gguf_tensors={"grouped_rows": "blk.*.ssm_in.weight"},
)
NAMES = Names(gguf=GGUF_NAMES, fused=(GATE_UP,))
DELTA: Mapping[str, str] = {
    **{role: f"in_proj_{role}.weight" for role in ("qkvz", "ba", "qkv", "z", "a", "b")},
    "conv": "conv1d.weight", "A_log": "A_log", "A": "A", "dt_bias": "dt_bias",
    "norm": "norm.weight", "out": "out_proj.weight",
}  # fmt: skip
"""Roles of `GatedDeltaNet` to tensor names."""


@dataclass(frozen=True, kw_only=True)
class LinearConfig(BaseConfig):
    """Fields of configurations whose layers are delta nets or attention.

    Attributes
    ----------
    linear_values : width of all value heads of a delta net, as GGUF files say it.
    num_nextn_predict_layers : of a GGUF file's layers, the last ones, which draft.
    """

    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    head_dim: int | None = 256
    layer_types: tuple[str, ...] | None = None
    full_attention_interval: int = 4
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    linear_values: int | None = None
    num_nextn_predict_layers: Amount = Amount(0)
    not_in_json: ClassVar[frozenset[str]] = frozenset({
        "source", "linear_values", "num_nextn_predict_layers",
    })  # fmt: skip
    default_turned: ClassVar[float] = 0.25

    def value_dim(self) -> int:
        """Return the width of a value head; `FormatError` if it does not divide the total."""
        whole, heads = self.linear_values, self.linear_num_value_heads
        if whole is None:
            return self.linear_value_head_dim
        if whole % heads:
            raise FormatError(f"{heads} value heads share {whole}", where="config")
        return whole // heads

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer; without a list every fourth has attention.

        Raises
        ------
        FormatError : the list or the interval fits no layers; value heads that keys don't divide.
        """
        count, interval = self.num_hidden_layers, self.full_attention_interval
        if interval < 1:
            raise FormatError(f"attention every {interval} layers", where="config")
        if self.linear_num_value_heads % self.linear_num_key_heads:
            heads = f"{self.linear_num_key_heads} key heads, {self.linear_num_value_heads} value"
            raise FormatError(f"delta nets have {heads} heads", where="config")
        turns = tuple(LINEAR if (n + 1) % interval else GLOBAL for n in range(count))
        return layer_list(self.layer_types or turns, count, (LINEAR, GLOBAL))


@dataclass(frozen=True, kw_only=True)
class Config(LinearConfig):
    """Fields of `Qwen3NextConfig`, and whether a file's rows of q, k, v and z are by key head."""

    num_key_value_heads: int | None = 2
    max_position_embeddings: int = 32768
    num_experts: int = 512
    num_experts_per_tok: int = 10
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] | None = None
    grouped_rows: bool = True
    not_in_json: ClassVar[frozenset[str]] = LinearConfig.not_in_json | {"grouped_rows"}

    def grouped(self) -> tuple[str, ...]:
        """Return the matrices with rows by key head: newer GGUF files have q, k, v and z apart."""
        return ("qkvz", "ba") if self.grouped_rows else ("ba",)

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        return is_stepped_sparse(layer, self.decoder_sparse_step, self.mlp_only_layers)


def delta_net(config: LinearConfig, **layout: Any) -> GatedDeltaNet:
    """Return the delta net of a configuration; GGUF files hold plain decays."""
    return GatedDeltaNet(
        width=config.hidden_size,
        heads=config.linear_num_value_heads,
        key_heads=config.linear_num_key_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.value_dim(),
        kernel=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
        activation=activation(config.hidden_act),
        decay_form="plain" if config.source == "gguf" else "log",
        **layout,
    )


def gated_attention(
    config: LinearConfig, context: int, sections: Sections | None = None
) -> Attention:
    """Return attention whose queries carry the gates of its output."""
    return Attention(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_width,
        rope=rope_table(config, context),
        qk_norm=QKNorm(config.rms_norm_eps, norm_offset(config)),
        biased=config.attention_bias,
        output_biased=config.attention_bias,
        output_gate=True,
        sections=sections,
    )


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    width, act = config.hidden_size, activation(config.hidden_act)
    eps, offset = config.rms_norm_eps, norm_offset(config)
    decoder = Decoder(config, context, family="qwen3_next", eps=eps, offset=offset)
    net = delta_net(config, grouped=config.grouped())
    mixers = {LINEAR: net, GLOBAL: gated_attention(config, context)}
    mlp = GatedMLP(width, config.intermediate_size, act)
    experts = experts_of(config, renormalise=config.norm_topk_prob)
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        if kind == LINEAR:
            op, tensors = mixers[kind], "linear_attn"
            x = decoder.mixer(x, n, op, name="delta", tensors=tensors, table=DELTA)
        else:
            x = decoder.mixer(x, n, mixers[kind])
        if config.is_sparse(n):
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
