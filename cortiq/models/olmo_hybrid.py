"""OLMo Hybrid: gated delta nets behind norms, every fourth layer OLMo 2's, mostly unrotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cortiq.ir import Program
from cortiq.ir.layers import GatedDeltaNet, QKNorm
from cortiq.models.config import BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, layer_list
from cortiq.models.names import Names
from cortiq.models.parts import Decoder, activation, attention, gated_mlp
from cortiq.models.qwen3_next import LINEAR
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor

ARCHITECTURES = ("olmo_hybrid",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(harmless=frozenset({
    "linear_a_log_max", "linear_a_log_min", "linear_dt_init_floor", "linear_dt_max",
    "linear_dt_min",
}))  # fmt: skip
NAMES = Names(
    joined={
        f"linear_attn.{whole}": tuple(f"linear_attn.{role}_{part}" for role in "qkv")
        for whole, part in (("qkv_proj", "proj"), ("conv1d", "conv1d"))
    },
    fused=(
        FusedTensor("attention_layer_norm", ("input_layernorm",)),
        FusedTensor("feedforward_layer_norm", ("post_attention_layernorm",)),
    ),
)
"""Two norms have two names each."""
NORM_EPS = 1e-5
"""Of the norm within a delta net, which no configuration changes."""
PERIOD = 4
"""Every fourth layer has attention where the file lists none, or the last one."""
DELTA: Mapping[str, str] = {
    "qkv": "qkv_proj.weight", "z": "g_proj.weight", "a": "a_proj.weight", "b": "b_proj.weight",
    "conv": "conv1d.weight", "A_log": "A_log", "dt_bias": "dt_bias", "norm": "o_norm.weight",
    "out": "o_proj.weight",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `OlmoHybridConfig`; without a `rope_theta` no layer rotates anything."""

    max_position_embeddings: int = 65536
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    layer_types: tuple[str, ...] | None = None
    linear_num_key_heads: int | None = None
    linear_num_value_heads: int | None = None
    linear_key_head_dim: int | None = None
    linear_value_head_dim: int | None = None
    linear_conv_kernel_dim: int = 4
    linear_allow_neg_eigval: bool = True
    default_theta: ClassVar[float] = 0.0

    def kinds(self) -> tuple[str, ...]:
        """Return the mixer of every layer."""
        count = self.num_hidden_layers
        turns = [LINEAR if (n + 1) % PERIOD else GLOBAL for n in range(count)]
        if GLOBAL not in turns:
            turns[-1] = GLOBAL
        return layer_list(self.layer_types or turns, count, (LINEAR, GLOBAL))

    def delta_net(self) -> GatedDeltaNet:
        """Return the mixer of layers without attention."""
        key_heads = self.linear_num_key_heads or self.num_attention_heads
        rate = 2.0 if self.linear_allow_neg_eigval else 1.0
        key_dim = self.linear_key_head_dim or int(0.75 * self.hidden_size / key_heads)
        return GatedDeltaNet(
            self.hidden_size, self.linear_num_value_heads or self.num_attention_heads, key_heads,
            key_dim, self.linear_value_head_dim or 2 * key_dim, self.linear_conv_kernel_dim,
            NORM_EPS, activation(self.hidden_act), rate=rate,
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk; layers of attention have norms after their branches only."""
    decoder = Decoder(config, context, family="olmo_hybrid", eps=config.rms_norm_eps)
    delta, mlp = config.delta_net(), gated_mlp(config, config.hidden_act)
    turned = config.rope_parameters.get("rope_theta")
    attend = attention(
        config, rope=rope_table(config, context) if turned else None,
        qk_norm=QKNorm(config.rms_norm_eps, full_width=True),
        biased=config.attention_bias, output_biased=config.attention_bias,
    )  # fmt: skip
    first, second = "post_attention_layernorm", "post_feedforward_layernorm"
    x = decoder.embed()
    for n, kind in enumerate(config.kinds()):
        if kind == GLOBAL:
            x = decoder.mixer(x, n, attend, before=None, after=first)
            x = decoder.feed_forward(x, n, mlp, before=None, after=second)
        else:
            x = decoder.mixer(x, n, delta, name="delta", tensors="linear_attn", table=DELTA)
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
