"""Flint: Qwen 3's attention with sinks, which turns only in windows; experts by sigmoid."""

from __future__ import annotations

from dataclasses import dataclass

from cortiq.ir import Program
from cortiq.ir.layers import MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, LOCAL, is_stepped_sparse, windows
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, activation, attention, gated_mlp
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("flint",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(aliases={"num_local_experts": "num_experts"})
DENSE = (0, 1)
"""Layers without experts, where no list says otherwise."""
PERIOD = 4
"""Of four layers the second sees everything, where no list says otherwise."""
EXPERTS = {role: name.replace("shared_experts", "shared_expert") for role, name in MOE.items()}


def published(name: str) -> str:
    """Return a tensor's name in published folders."""
    return name.replace("self_attn.sinks", "self_attn.softmax_offset")


NAMES = Names(forms=(published,))


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `FlintConfig`."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 128
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    attention_bias: bool = False
    sliding_window: int = 513
    layer_types: tuple[str, ...] | None = None
    num_experts: int = 256
    num_experts_per_tok: int = 6
    norm_topk_prob: bool = True
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: Amount = Amount(1024)
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] | None = None

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, None for full attention: the first two, the last, …"""
        count = self.num_hidden_layers
        whole = {0, count - 1}
        kinds = [GLOBAL if n in whole or n % PERIOD == 1 else LOCAL for n in range(count)]
        return windows(self.layer_types or kinds, count, self.sliding_window)

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer has experts."""
        dense = DENSE if self.mlp_only_layers is None else self.mlp_only_layers
        return is_stepped_sparse(layer, self.decoder_sparse_step, dense)


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = Decoder(config, context, family="flint", eps=config.rms_norm_eps)
    rope, mlp = rope_table(config, context), gated_mlp(config, config.hidden_act)
    experts = MoE(
        width=config.hidden_size,
        inner=config.moe_intermediate_size,
        experts=config.num_experts,
        router=Router(config.num_experts_per_tok, "sigmoid", renormalise=config.norm_topk_prob),
        activation=activation(config.hidden_act),
        shared_inner=config.shared_expert_intermediate_size,
    )
    x = decoder.embed()
    for n, window in enumerate(config.windows()):
        mixer = attention(
            config, rope=None if window is None else rope, window=window, sinks=True,
            qk_norm=QKNorm(config.rms_norm_eps), biased=config.attention_bias,
            output_biased=config.attention_bias,
        )  # fmt: skip
        x = decoder.mixer(x, n, mixer)
        if config.is_sparse(n):
            x = decoder.feed_forward(x, n, experts, table=EXPERTS)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
