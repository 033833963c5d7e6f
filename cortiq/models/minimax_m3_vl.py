"""MiniMax M3's text model: clamped SwiGLU everywhere, norms of 1 + w, experts.

Sparse layers attend to the best blocks of keys. While the declared context has no more blocks than
are kept, that is all of them, and such a layer is an ordinary one; longer contexts are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import GatedMLP, Gating, MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys
from cortiq.models.layer_kinds import GLOBAL, layer_list, sparse_layers
from cortiq.models.names import Names
from cortiq.models.parts import MOE, Decoder, attention
from cortiq.models.pieces import Fused
from cortiq.models.rope import rope_table
from cortiq.numerics.route import Router

ARCHITECTURES = ("minimax_m3_vl_text",)
GGUF: tuple[str, ...] = ()
KEYS = Keys(only={"hidden_act": "silu"})


def _joint(block: str, bare: bool = False) -> Fused:
    parts = (f"{block}.gate_proj", f"{block}.up_proj")
    return Fused(f"{block}.gate_up_proj", parts, bare=bare)


NAMES = Names(
    fused=(
        _joint("mlp"), _joint("mlp.shared_experts"), _joint("mlp.experts", bare=True),
        Fused("mlp.experts.down_proj", ("mlp.experts.down_proj",), bare=True),
    ),
    unread=r"model\.layers\.\d+\.self_attn\.indexer\..*",
)  # fmt: skip
SPARSE = "minimax_m3_sparse"


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of `MiniMaxM3VLTextConfig`; `intermediate_size` is that of an expert."""

    num_key_value_heads: int | None = 4
    head_dim: int | None = 128
    max_position_embeddings: int = 524288
    rms_norm_eps: float = 1e-6
    dense_intermediate_size: int = 12288
    shared_intermediate_size: int = 3072
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    routed_scaling_factor: float = 2.0
    rotary_dim: int = 64
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    mlp_layer_types: tuple[str, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    index_n_heads: int = 4
    index_head_dim: int = 128
    index_block_size: int = 128
    index_topk_blocks: int = 16
    index_local_blocks: Amount = Amount(1)
    default_theta: ClassVar[float] = 5000000.0

    def check(self, context: int, turned: int) -> None:
        """Raise for sparse layers that would leave keys out, and for two rotary widths."""
        layers = self.num_hidden_layers
        kinds = layer_list(self.layer_types or (GLOBAL,) * layers, layers, (GLOBAL, SPARSE))
        reach = self.index_block_size * self.index_topk_blocks
        if SPARSE in kinds and context > reach:
            message = f"sparse layers choose among keys once there are more than {reach}"
            hint = f"declare a context of at most {reach} tokens"
            raise UnsupportedError(message, where="config", hint=hint)
        if turned != self.rotary_dim:
            message = f"rotary_dim is {self.rotary_dim}, but the rope parameters turn {turned}"
            raise FormatError(message, where="config")

    def routed(self) -> tuple[bool, ...]:
        """Which layers have experts: all by default."""
        layers = self.num_hidden_layers
        return sparse_layers(self.mlp_layer_types or ("sparse",) * layers, layers)


def build(config: Config, context: int) -> Program:
    """The trunk."""
    rope = rope_table(config, context)
    config.check(context, rope.dim)
    width, eps = config.hidden_size, config.rms_norm_eps
    decoder = Decoder(config, context, family="minimax_m3_vl", eps=eps, offset=1.0)
    act = Gating(limit=config.swiglu_limit, steepness=config.swiglu_alpha, up_shift=1.0)
    mixer = attention(config, rope=rope, qk_norm=QKNorm(eps, 1.0))
    mlp = GatedMLP(width, config.dense_intermediate_size, act)
    router = Router(
        config.num_experts_per_tok, "sigmoid", renormalise=True,
        routed_scaling=config.routed_scaling_factor,
    )  # fmt: skip
    experts = MoE(
        width, config.intermediate_size, config.num_local_experts, router, act,
        selection_bias=True, shared_inner=config.shared_intermediate_size,
    )  # fmt: skip
    x = decoder.embed()
    for n, sparse in enumerate(config.routed()):
        x = decoder.mixer(x, n, mixer)
        if sparse:
            x = decoder.feed_forward(x, n, experts, table=MOE)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
