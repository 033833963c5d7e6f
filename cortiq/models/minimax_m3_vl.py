"""MiniMax M3's text model: clamped SwiGLU everywhere, norms of 1 + w, experts.

Sparse layers attend to the best blocks of keys. While the declared context has no more blocks than
are kept, that is all of them, and such a layer is an ordinary one without an indexer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import GatedMLP, Gating, Indexer, MoE, QKNorm
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.gguf_keys import BY_SIGMOID
from cortiq.models.layer_kinds import GLOBAL, layer_list, sparse_layers
from cortiq.models.names import Names
from cortiq.models.parts import ATTENTION, MOE, Decoder, attention, norm_offset
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.route import Router

ARCHITECTURES = ("minimax_m3_vl_text", "minimax-m3")
GGUF = ("minimax-m3",)
KEYS = Keys(
    only={"hidden_act": "silu"},
    gguf={
        "attention.indexer.block_size": "index_block_size",
        "attention.indexer.head_count": "index_n_heads",
        "attention.indexer.key_length": "index_head_dim",
        "attention.indexer.local_blocks": "index_local_blocks",
        "attention.indexer.top_k": "index_topk_blocks",
        "expert_feed_forward_length": "intermediate_size", "expert_shared_count": "shared",
        "expert_weights_norm": "renormalised", "expert_weights_scale": "routed_scaling_factor",
        "feed_forward_length": "dense_intermediate_size",
        "leading_dense_block_count": "dense", "rope.dimension_count": "rotary_dim",
    },
    gguf_absent={"expert_weights_norm": False, "expert_weights_scale": 1.0},
    gguf_only=BY_SIGMOID,
)  # fmt: skip


def _joint(block: str, bare: bool = False) -> FusedTensor:
    parts = (f"{block}.gate_proj", f"{block}.up_proj")
    return FusedTensor(f"{block}.gate_up_proj", parts, bare=bare)


NAMES = Names(
    fused=(
        _joint("mlp"), _joint("mlp.shared_experts"), _joint("mlp.experts", bare=True),
        FusedTensor("mlp.experts.down_proj", ("mlp.experts.down_proj",), bare=True),
    ),
    gguf={f"self_attn.indexer.{part}": f"indexer.{part}"
          for part in ("q_proj", "k_proj", "q_norm", "k_norm")},
    unread=r"(model\.layers\.\d+\.self_attn|blk\.\d+)\.indexer\..*",
)  # fmt: skip
SPARSE = "minimax_m3_sparse"
TENSORS = {
    **ATTENTION,
    "index_q": "indexer.q_proj.weight", "index_k": "indexer.k_proj.weight",
    "index_q_norm": "indexer.q_norm.weight", "index_k_norm": "indexer.k_norm.weight",
}  # fmt: skip


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
    renormalised: bool = True
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "renormalised"})
    default_theta: ClassVar[float] = 5000000.0

    def check(self, turned: int) -> None:
        """Raise if two rotary widths are given."""
        if turned != self.rotary_dim:
            message = f"rotary_dim is {self.rotary_dim}, but the rope parameters turn {turned}"
            raise FormatError(message, where="config")

    def indexers(self, context: int) -> list[Indexer | None]:
        """Return each layer's indexer, which chooses blocks."""
        layers = self.num_hidden_layers
        kinds = layer_list(self.layer_types or (GLOBAL,) * layers, layers, (GLOBAL, SPARSE))
        if SPARSE in kinds:
            self._check_indexer()
        if context <= self.index_block_size * self.index_topk_blocks:
            return [None] * layers
        indexer = Indexer(
            self.index_n_heads, self.index_head_dim, self.index_block_size,
            self.index_topk_blocks, int(self.index_local_blocks), self.rms_norm_eps,
            norm_offset(self),
        )  # fmt: skip
        return [indexer if kind == SPARSE else None for kind in kinds]

    def _check_indexer(self) -> None:
        few, many = sorted((self.index_n_heads, self.kv_heads))
        rules = {
            f"index_n_heads = {self.index_n_heads} beside {self.kv_heads} KV heads":
                few > 0 and many % few == 0 and self.num_attention_heads % many == 0,
            f"index_block_size = {self.index_block_size}": self.index_block_size >= 1,
            f"index_head_dim = {self.index_head_dim}, less than is turned":
                self.index_head_dim >= self.rotary_dim,
            f"index_local_blocks = {int(self.index_local_blocks)} of {self.index_topk_blocks}":
                0 <= self.index_local_blocks <= self.index_topk_blocks >= 1,
        }  # fmt: skip
        for what, holds in rules.items():
            if not holds:
                raise UnsupportedError(what, where="config")

    def routed(self) -> tuple[bool, ...]:
        """Return whether each layer has experts: all by default."""
        layers = self.num_hidden_layers
        return sparse_layers(self.mlp_layer_types or ("sparse",) * layers, layers)


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(Config):
    """Fields of GGUF files; layers with experts choose blocks.

    Attributes
    ----------
    dense : leading layers without experts. shared : experts that every token passes.
    """

    dense: Amount = Amount(0)
    shared: Amount = Amount(1)

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        plain, sparse = int(self.dense), self.num_hidden_layers - self.dense
        return convert_config(
            Config, self, where, shared_intermediate_size=self.intermediate_size * self.shared,
            layer_types=(GLOBAL,) * plain + (SPARSE,) * sparse,
            mlp_layer_types=("dense",) * plain + ("sparse",) * sparse,
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    rope = rope_table(config, context)
    config.check(rope.dim)
    width, eps = config.hidden_size, config.rms_norm_eps
    decoder = Decoder(config, context, family="minimax_m3_vl", eps=eps, offset=norm_offset(config))
    act = Gating(limit=config.swiglu_limit, steepness=config.swiglu_alpha, up_shift=1.0)
    mixer = attention(config, rope=rope, qk_norm=QKNorm(eps, norm_offset(config)))
    mlp = GatedMLP(width, config.dense_intermediate_size, act)
    router = Router(
        config.num_experts_per_tok, "sigmoid", renormalise=config.renormalised,
        routed_scaling=config.routed_scaling_factor,
    )  # fmt: skip
    experts = MoE(
        width, config.intermediate_size, config.num_local_experts, router, act,
        selection_bias=True, shared_inner=config.shared_intermediate_size,
    )  # fmt: skip
    x = decoder.embed()
    indexers = config.indexers(context)
    for n, routed in enumerate(config.routed()):
        x = decoder.mixer(x, n, replace(mixer, indexer=indexers[n]), table=TENSORS)
        if routed:
            x = decoder.feed_forward(x, n, experts, table=MOE)
        else:
            x = decoder.feed_forward(x, n, mlp)
    return decoder.finish(x)
