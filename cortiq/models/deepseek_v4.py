"""DeepSeek V4: residual streams; a window of keys and compressed ones beyond it; hashed experts.

Indices of experts that follow from the token are read as floats. While the declared context has no
more entries than a query takes, that is all of them, and there is no indexer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.ir.layers import CompressedAttention, Entries, EntryIndexer, Gating, MoE
from cortiq.models import deepseek_v4_gguf
from cortiq.models.config import Amount, BaseConfig, Keys, convert_config
from cortiq.models.hyper_connections import FUSED, HyperConnected, HyperConnectedDecoder
from cortiq.models.layer_kinds import LOCAL, layer_list
from cortiq.models.names import Names
from cortiq.models.parts import FLOOR
from cortiq.models.rope import rope_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.route import Router

ARCHITECTURES = ("deepseek_v4", "deepseek4")
GGUF = ("deepseek4",)
DRAFTER = "cortiq.models.deepseek_v4_dspark"
"""The module of the drafter that folders may hold beside the trunk."""
MOST_STAGES = 16
"""Layers of a drafter at most."""
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS: Mapping[int, str] = {0: LOCAL, 4: SPARSE, 128: HEAVY}
"""Kinds of layers by `compress_ratios`; the rates are those of `compress_rates`."""
HASHED, ROUTED = "hash_moe", "moe"
MAIN, FAR = "main", "compress"
"""Kinds of rotary tables: of layers with a window only, and of the others."""
KEYS = Keys(
    aliases={"moe_intermediate_size": "intermediate_size", "num_local_experts": "n_routed_experts"},
    harmless=frozenset({"expert_dtype", "scale_fmt"}),
    only={
        "attention_bias": False, "first_k_dense_replace": 0, "hidden_act": "silu",
        "mlp_bias": False, "n_group": 1, "n_shared_experts": 1, "norm_topk_prob": True,
        "scoring_func": "sqrtsoftplus", "topk_group": 1, "topk_method": "noaux_tc",
    },
    gguf=deepseek_v4_gguf.KEYS,
    gguf_absent={"expert_weights_scale": 1.0},
    gguf_only=deepseek_v4_gguf.ONLY,
)  # fmt: skip


def NAMES(config: BaseConfig) -> Names:
    """Return the names of tensors; a drafter's layers are those after the trunk's."""
    first = config.num_hidden_layers
    return Names(
        fused=(
            FusedTensor("attn.norm", ("attn.kv_norm",)),  # as transformers writes it
            *FUSED,
        ),
        folder={f"model.layers.{first + n}.": f"mtp.{n}." for n in range(MOST_STAGES)},
        unread=r"model\.layers\.\d+\.attn\.indexer\..*|blk\.\d+\.indexer.*",
        gguf=deepseek_v4_gguf.NAMES,
    )


ATTENTION: Mapping[str, str] = {
    "q_a": "wq_a.weight", "q_a_norm": "q_norm.weight", "q": "wq_b.weight", "kv": "wkv.weight",
    "kv_norm": "kv_norm.weight", "sinks": "attn_sink", "o_a": "wo_a.weight", "o": "wo_b.weight",
    "index_q": "indexer.wq_b.weight", "index_weights": "indexer.weights_proj.weight",
    **{
        f"{role}_{what}": f"{within}compressor.{tensor}"
        for role, within in (("far", ""), ("index", "indexer."))
        for what, tensor in (
            ("rows", "wkv.weight"), ("gates", "wgate.weight"), ("bias", "ape"),
            ("norm", "norm.weight"),
        )
    },
}  # fmt: skip
EXPERTS: Mapping[str, str] = {
    "router": "gate.weight", "bias": "gate.bias", "table": "gate.tid2eid",
    **{
        f"{kind}{role}": f"{within}.{tensor}.weight"
        for kind, within in (("", "experts"), ("shared_", "shared_experts"))
        for role, tensor in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Config(HyperConnected):
    """Fields of `DeepseekV4Config`; `compress_ratios` and `num_hash_layers` are older forms."""

    head_dim: int | None = 512
    max_position_embeddings: int = 1048576
    q_lora_rank: int = 1024
    qk_rope_head_dim: int | None = None
    n_routed_experts: int = 256
    num_experts_per_tok: int = 6
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    sliding_window: int = 128
    o_groups: int = 8
    o_lora_rank: int = 1024
    index_n_heads: int = 64
    index_head_dim: int = 128
    index_topk: int = 512
    compress_rope_theta: float = 160000.0
    compress_rates: Mapping[str, Any] | None = None
    compress_ratios: tuple[int, ...] | None = None
    layer_types: tuple[str, ...] | None = None
    mlp_layer_types: tuple[str, ...] | None = None
    num_hash_layers: Amount = Amount(3)
    num_nextn_predict_layers: Amount = Amount(1)
    dspark_block_size: Amount = Amount(0)
    dspark_markov_rank: Amount = Amount(0)
    dspark_noise_token_id: Amount = Amount(0)
    dspark_target_layer_ids: tuple[int, ...] = ()
    default_turned: ClassVar[float] = 0.125

    def kinds(self) -> tuple[str, ...]:
        """Return the kind of every layer's attention."""
        count, listed = self.num_hidden_layers, self.layer_types
        if listed is None and self.compress_ratios is not None:
            ratios = self.compress_ratios[:count]  # a list may go on with layers that draft
            listed = tuple(RATIOS.get(ratio, f"a ratio of {ratio}") for ratio in ratios)
        elif listed is None:
            listed = tuple(SPARSE if n % 2 and n > 1 else HEAVY for n in range(count))
        return layer_list(listed, count, (LOCAL, SPARSE, HEAVY))

    def hashed(self) -> tuple[bool, ...]:
        """Return whether each layer's experts follow from the token."""
        count, listed = self.num_hidden_layers, self.mlp_layer_types
        if listed is None:
            listed = tuple(HASHED if n < self.num_hash_layers else ROUTED for n in range(count))
        kinds = layer_list(listed, count, (HASHED, ROUTED), "mlp_layer_types")
        return tuple(kind == HASHED for kind in kinds)

    def rate(self, kind: str) -> int:
        """Return how many rows an entry stands for."""
        usual = {name: ratio for ratio, name in RATIOS.items()}[kind]
        rate = (self.compress_rates or {}).get(kind, usual)
        if type(rate) is not int or rate < 2:
            raise UnsupportedError(f"compress_rates has {rate!r} for {kind}", where="config")
        return rate

    def entries(self, kind: str, context: int) -> Entries | None:
        """Return what a layer attends to beyond its window."""
        if kind == LOCAL:
            return None
        rate, sparse = self.rate(kind), kind == SPARSE
        there = max(context // rate, 1)
        if not sparse or there <= self.index_topk:
            return Entries(rate, there, overlap=sparse)
        indexer = EntryIndexer(self.index_n_heads, self.index_head_dim)
        return Entries(rate, self.index_topk, overlap=True, indexer=indexer)

    def with_tables(self) -> Config:
        """Return the configuration with the parameters of both rotary tables."""
        given = dict(self.rope_parameters)
        if not given.keys() & {MAIN, FAR}:
            turned = given.pop("partial_rotary_factor", None)
            if turned is None and self.qk_rope_head_dim is not None:
                turned = self.qk_rope_head_dim / self.head_width
            share = {} if turned is None else {"partial_rotary_factor": turned}
            main = {"rope_type": "default", "rope_theta": given.get("rope_theta", 1e4), **share}
            given = {MAIN: main, FAR: {**given, "rope_theta": self.compress_rope_theta, **share}}
        if missing := {MAIN, FAR} - given.keys():
            raise FormatError(f"rope_parameters have no {', '.join(missing)}", where="config")
        if given[FAR].get("rope_type") == "yarn":
            given[FAR] = {"attention_factor": 1.0, **given[FAR]}
        return replace(self, rope_parameters=given)

    def attention(self, kind: str, context: int) -> CompressedAttention:
        """Return a layer's attention."""
        rope = rope_table(self, context, MAIN if kind == LOCAL else FAR)
        rules = {
            f"qk_rope_head_dim is {self.qk_rope_head_dim}, and {rope.dim} elements are turned":
                self.qk_rope_head_dim not in (None, rope.dim),
            f"index_head_dim = {self.index_head_dim}, less than is turned":
                self.index_head_dim < rope.dim,
            f"num_key_value_heads = {self.num_key_value_heads}":
                self.num_key_value_heads not in (None, 1),
        }  # fmt: skip
        for what, broken in rules.items():
            if broken:
                raise UnsupportedError(what, where="config")
        return CompressedAttention(
            width=self.hidden_size, heads=self.num_attention_heads, dim=self.head_width,
            query_latent=self.q_lora_rank, groups=self.o_groups, group_dim=self.o_lora_rank,
            window=self.sliding_window, eps=self.rms_norm_eps, scale=self.head_width**-0.5,
            rope=rope, entries=self.entries(kind, context),
        )  # fmt: skip

    def experts(self, hashed: bool) -> MoE:
        """Return a layer's experts."""
        router = Router(
            self.num_experts_per_tok, "sqrt_softplus", renormalise=True, denominator_floor=FLOOR,
            routed_scaling=self.routed_scaling_factor,
        )  # fmt: skip
        return MoE(
            width=self.hidden_size, inner=self.intermediate_size, experts=self.n_routed_experts,
            router=router, activation=Gating("silu", limit=self.swiglu_limit),
            selection_bias=not hashed, shared_inner=self.intermediate_size,
            listed=self.vocab_size if hashed else 0,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(deepseek_v4_gguf.CompressedFields, Config):
    """Fields of GGUF files."""

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        self.check_widths(self.hc_mult, where)
        return convert_config(Config, self, where, swiglu_limit=self.bound(where))


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    config = config.with_tables()
    decoder = HyperConnectedDecoder(config, context, family="deepseek_v4")
    streams = decoder.streams()
    for n, (kind, hashed) in enumerate(zip(config.kinds(), config.hashed(), strict=True)):
        streams = decoder.through(
            streams, n, config.attention(kind, context), "attention", tensors="attn",
            table=ATTENTION, before="attn_norm",
        )  # fmt: skip
        streams = decoder.through(
            streams, n, config.experts(hashed), "mlp", tensors="ffn", table=EXPERTS,
            before="ffn_norm", others=[decoder.token] if hashed else [],
        )  # fmt: skip
    return decoder.collapsed(streams)
