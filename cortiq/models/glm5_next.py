"""GLM 5 Next (GLM 5.3 Flash): residual streams; Kimi delta attention; sparse attention to pools.

Latent attention that rotates nothing sees the pools of keys that an indexer scores best, and its
own. While the declared context has no more pools than a query takes, that is all of them, and there
is no indexer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Op, Program, Value
from cortiq.ir.layers import KDA, GatedMLP, Gating, KeyIndexer, LatentAttention, MoE
from cortiq.models import deepseek_v32, glm_moe_dsa
from cortiq.models.config import Amount, is_number
from cortiq.models.deepseek_v32 import INDEXER
from cortiq.models.hyper_connections import FUSED, HyperConnected, HyperConnectedDecoder
from cortiq.models.kimi_delta import DELTA, INNER, JOINED, DeltaConfig
from cortiq.models.layer_kinds import GLOBAL, layer_list
from cortiq.models.mla import EPS, latent_attention, names_of
from cortiq.models.parts import MLP, MOE, named
from cortiq.models.qwen3_next import LINEAR

ARCHITECTURES = ("glm5_next_text", "glm5_next")
GGUF: tuple[str, ...] = ()
INDEXED = ("indexed_attention", "deepseek_sparse_attention", GLOBAL)
"""Names of layers with attention."""
KEYS = replace(
    deepseek_v32.KEYS,
    harmless=deepseek_v32.KEYS.harmless | {
        "index_share_for_mtp_iteration", "indexer_rope_interleave", "moe_router_dtype",
        "rope_interleave",
    },
    only={
        **deepseek_v32.KEYS.only, "hidden_act": "silu", "index_kpool_always_select_tail": True,
        "index_kpool_compress": True, "mhc": True, "mla_use_nope": True,
    },
    gguf={},
    gguf_absent={},
)  # fmt: skip
NAMES = replace(
    deepseek_v32.NAMES, fused=(*deepseek_v32.NAMES.fused, *FUSED), joined=JOINED, gguf={},
    unread=r"model\.layers\.\d+\.self_attn\.indexer\..*",
)  # fmt: skip
POOLS = INDEXER | {
    "index_gates": "indexer.index_kpool_compress_gate",
    "index_bias": "indexer.index_kpool_compress_ape",
}
BOUND = -5.0
"""Bound of decays that a file does not say, which `safe_gate` asks for."""
MORE_INNER = frozenset({"full_attn_layers", "gate_lower_bound", "kda_layers", "safe_gate"})
"""Keys of `linear_attn_config` besides sizes; `layer_types` says which layers are delta layers."""


@dataclass(frozen=True, kw_only=True)
class Config(HyperConnected, DeltaConfig, glm_moe_dsa.Config):
    """Fields of `Glm5NextTextConfig`."""

    max_position_embeddings: int = 1048576
    rms_norm_eps: float = 1e-5
    q_lora_rank: int | None = 1536
    qk_nope_head_dim: int = 256
    qk_rope_head_dim: Amount = Amount(0)  # type: ignore[assignment]
    n_routed_experts: int = 288
    swiglu_limit: float = 10.0
    linear_lower_bound: float | None = BOUND
    index_kpool: int = 16
    family: ClassVar[str] = "glm5_next"
    usual_heads: ClassVar[int] = 64
    not_in_json: ClassVar[frozenset[str]] = frozenset({"source", "hidden_act", "rope_interleave"})

    @property
    def head_width(self) -> int:
        """Values of a query's head."""
        return self.qk_nope_head_dim

    def kinds(self) -> tuple[str, ...]:
        """Return each layer's mixer; without a list every fourth has attention."""
        count = self.num_hidden_layers
        usual = tuple(LINEAR if n % 4 != 3 else GLOBAL for n in range(count))
        listed = layer_list(self.layer_types or usual, count, (LINEAR, *INDEXED))
        return tuple(LINEAR if kind == LINEAR else GLOBAL for kind in listed)

    def indexed(self) -> tuple[bool, ...]:
        """Return which layers have an indexer; another has the choice of the layer before it."""
        own, kinds = self.listed_indexers(), self.kinds()
        for n, kind in enumerate(kinds):
            before = n > 0 and kinds[n - 1] == GLOBAL and own[n - 1]
            if kind == GLOBAL and not own[n] and not before:
                what = f"layer {n}, which shares a choice that the layer before it does not make"
                raise UnsupportedError(what, where="config")
        return tuple(kind == GLOBAL and here for kind, here in zip(kinds, own, strict=True))

    def delta(self) -> KDA:
        """Return the mixer of most layers; its decays have a bound unless the file says none.

        Raises
        ------
        UnsupportedError : keys of `linear_attn_config` that are not known; a bound that is not a
            number below 0.
        """
        inner = self.linear_attn_config
        bound = self.linear_lower_bound
        if inner is not None:
            if unknown := sorted(set(inner) - set(INNER) - MORE_INNER):
                message = f"has keys that cortiq does not support: {', '.join(unknown)}"
                raise UnsupportedError(message, where="linear_attn_config")
            bound = inner.get("gate_lower_bound", bound)
            if bound is None and inner.get("safe_gate", True):
                bound = BOUND
        if bound is not None and not (is_number(bound) and bound < 0):
            message = f"the lower bound of decays is {bound!r}, not a number below 0"
            raise UnsupportedError(message, where="config")
        return replace(super().delta(), decay_bound=bound)

    def pools(self) -> int:
        """Return how many pools a query takes."""
        if self.index_topk % self.index_kpool:
            message = f"index_topk is {self.index_topk}, pools are of {self.index_kpool} keys"
            raise UnsupportedError(message, where="config")
        return self.index_topk // self.index_kpool

    def choice(self) -> KeyIndexer:
        """Return the choice of pools."""
        return KeyIndexer(
            self.hidden_size, self.q_lora_rank or 0, self.index_n_heads, self.index_head_dim,
            self.pools(), self.rms_norm_eps, EPS, biased=self.attention_bias,
            every=self.index_kpool,
        )  # fmt: skip

    def attention(self) -> LatentAttention:
        """Return a layer's attention, which rotates nothing.

        Raises
        ------
        UnsupportedError : a configuration that no published model has.
        """
        for what, broken in {
            "sparse attention without q_lora_rank": not self.q_lora_rank,
            f"qk_rope_head_dim = {self.qk_rope_head_dim}": self.qk_rope_head_dim > 0,
        }.items():
            if broken:
                raise UnsupportedError(what, where="config")
        return replace(latent_attention(self, None), eps=self.rms_norm_eps)

    def feed_forward(self, sparse: bool) -> Op:
        """Return a layer's MLP or experts."""
        act = Gating("silu", limit=self.swiglu_limit)
        if not sparse:
            return GatedMLP(self.hidden_size, self.intermediate_size, act)
        return MoE(
            width=self.hidden_size, inner=self.moe_intermediate_size,
            experts=self.n_routed_experts, router=self.router(), activation=act,
            selection_bias=True, shared_inner=self.moe_intermediate_size * self.n_shared_experts,
        )  # fmt: skip


class _Attention:
    """Writes the attention of layers, with the indexers that choose their keys."""

    def __init__(self, decoder: HyperConnectedDecoder, config: Config, context: int) -> None:
        self.decoder, self.indexed = decoder, config.indexed()
        self.op, self.choice, self.keys = config.attention(), config.choice(), tuple[Value, ...]()
        self.chosen = context // config.index_kpool > config.pools()
        if self.chosen:
            self.op = replace(self.op, chosen=True, block=config.index_kpool)
        self.names = names_of(config) | POOLS

    def write(self, row: Value, n: int) -> Value:
        """Write a layer's attention to a row."""
        file, here = f"model.layers.{n}", f"layers.{n}"
        row = self.decoder.norm(row, f"{here}.attention_norm", f"{file}.input_layernorm")
        if self.chosen and self.indexed[n]:
            self.keys = self._chosen(row, n)
        return self.decoder.mixer(
            None, n, self.op, table=self.names, before=None, read=row, others=self.keys
        )

    def _chosen(self, row: Value, n: int) -> tuple[Value, ...]:
        here = f"layers.{n}"
        weights = named(self.choice, f"model.layers.{n}.self_attn", self.names)
        slots = {role: f"{here}.{role}" for role in self.choice.slot_kinds()}
        return self.decoder.builder.add_node(
            self.choice, row, self.decoder.position, name=f"{here}.indexer", weights=weights,
            slots=slots,
        )  # fmt: skip


def build(config: Config, context: int) -> Program:
    """Build the trunk."""
    decoder = HyperConnectedDecoder(config, context, family=config.family)
    attention, delta = _Attention(decoder, config, context), config.delta()
    streams = decoder.streams()
    for n, (kind, sparse) in enumerate(zip(config.kinds(), config.sparse(), strict=True)):
        row, *how = decoder.read(streams, n, "attention")
        if kind == GLOBAL:
            y = attention.write(row, n)
        else:
            y = decoder.mixer(None, n, delta, name="delta", table=DELTA, read=row)
        streams = decoder.write(streams, y, how, n, "attention")
        op, table = config.feed_forward(sparse), MOE if sparse else MLP
        streams = decoder.through(
            streams, n, op, "mlp", tensors="mlp", table=table, before="post_attention_layernorm"
        )
    return decoder.averaged(streams)
