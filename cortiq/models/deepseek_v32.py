"""DeepSeek V3.2: DeepSeek V3 whose queries attend to the keys that an indexer chooses.

While the declared context is no longer than the number of keys chosen, that is all of them, and
there is no indexer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cortiq.errors import UnsupportedError
from cortiq.ir import Value
from cortiq.ir.layers import KeyIndexer
from cortiq.models import deepseek2, deepseek_v3, glm4_moe_lite
from cortiq.models.config import Amount, Keys
from cortiq.models.layer_kinds import layer_list
from cortiq.models.mla import EPS, LATENT_GGUF, names_of
from cortiq.models.parts import Decoder, named
from cortiq.models.rope import rope_table

ARCHITECTURES = ("deepseek_v32", "deepseek32")
GGUF = ("deepseek32",)
KEYS = Keys(
    aliases={"num_local_experts": "n_routed_experts"},
    same_as=deepseek_v3.KEYS.same_as,
    harmless=deepseek_v3.KEYS.harmless,
    only={**deepseek_v3.KEYS.only, "mlp_bias": False, "indexer_rope_interleave": False},
    gguf={
        **deepseek2.KEYS.gguf,
        "attention.indexer.head_count": "index_n_heads",
        "attention.indexer.key_length": "index_head_dim",
        "attention.indexer.top_k": "index_topk",
    },
    gguf_absent=deepseek2.KEYS.gguf_absent,
)
NAMES = replace(
    deepseek_v3.NAMES,
    gguf={
        **LATENT_GGUF,
        "self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k",
        "self_attn.indexer.k_norm": "indexer.k_norm",
        "self_attn.indexer.weights_proj": "indexer.proj",
    },
    unread=r"(model\.layers\.\d+\.self_attn|blk\.\d+)\.indexer\..*",
)  # fmt: skip
INDEXER = {
    "index_q": "indexer.wq_b.weight", "index_k": "indexer.wk.weight",
    "index_k_norm": "indexer.k_norm.weight", "index_k_norm_bias": "indexer.k_norm.bias",
    "index_weights": "indexer.weights_proj.weight",
}  # fmt: skip
INDEXED, OLD_INDEXED = "indexed_attention", "deepseek_sparse_attention"
"""What layers are called whose keys are chosen: by transformers, and before that."""
build = deepseek_v3.build


@dataclass(frozen=True, kw_only=True)
class Config(glm4_moe_lite.Config):
    """Fields of `DeepseekV32Config`."""

    num_key_value_heads: int | None = 128
    max_position_embeddings: int = 163840
    rms_norm_eps: float = 1e-6
    q_lora_rank: int | None = 1536
    qk_nope_head_dim: int = 128
    v_head_dim: int = 128
    n_routed_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 2048
    n_group: int = 8
    topk_group: int = 4
    routed_scaling_factor: float = 2.5
    first_k_dense_replace: Amount = Amount(3)
    index_n_heads: int = 64
    index_head_dim: int = 128
    index_topk: int = 2048
    layer_types: tuple[str, ...] | None = None
    family: ClassVar[str] = "deepseek_v32"
    index_pairing: ClassVar[str] = "half"

    def indexed(self) -> tuple[bool, ...]:
        """Return which layers have an indexer; the others attend to what the last one chose."""
        return (True,) * self.num_hidden_layers

    def indexer(self, context: int) -> KeyIndexer:
        """Return a layer's choice of keys.

        Raises
        ------
        UnsupportedError : a configuration that no published model has.
        """
        rules = {
            "sparse attention without q_lora_rank": not self.q_lora_rank,
            f"index_head_dim = {self.index_head_dim}, less than is turned":
                self.index_head_dim < self.qk_rope_head_dim,
            f"rope_interleave = {self.rope_interleave}": not self.rope_interleave,
        }  # fmt: skip
        if self.layer_types is not None:
            layer_list(self.layer_types, self.num_hidden_layers, (INDEXED, OLD_INDEXED))
        for what, broken in rules.items():
            if broken:
                raise UnsupportedError(what, where="config")
        return KeyIndexer(
            self.hidden_size, self.q_lora_rank or 0, self.index_n_heads, self.index_head_dim,
            self.index_topk, EPS, EPS, rope_table(self, context), self.index_pairing,
            self.attention_bias,
        )  # fmt: skip

    def mixing(self, decoder: Decoder, context: int) -> Callable[[Value, int], Value]:
        """Return what writes a layer's attention."""
        indexer, indexed = self.indexer(context), self.indexed()
        if context <= self.index_topk:
            return super().mixing(decoder, context)
        mixer, names = replace(self.mixer(context), chosen=True), names_of(self) | INDEXER
        keys: list[Value] = []

        def mixed(x: Value, n: int) -> Value:
            file, here = f"model.layers.{n}", f"layers.{n}"
            row = decoder.norm(x, f"{here}.attention_norm", f"{file}.input_layernorm")
            if indexed[n]:
                weights = named(indexer, f"{file}.self_attn", names)
                keys[:] = decoder.builder.add_node(
                    indexer, row, decoder.position, name=f"{here}.indexer", weights=weights,
                    slots={"index": f"{here}.index"},
                )  # fmt: skip
            return decoder.mixer(x, n, mixer, table=names, before=None, read=row, others=keys)

        return mixed


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(deepseek2.Config):
    """Fields of GGUF files: those of `deepseek2`, and the indexer's."""

    index_n_heads: int = 64
    index_head_dim: int = 128
    index_topk: int = 2048
    made: ClassVar[type[Config]] = Config

    def further(self) -> dict[str, Any]:
        """Return the fields that are not those of DeepSeek V3."""
        return {
            "index_n_heads": self.index_n_heads, "index_head_dim": self.index_head_dim,
            "index_topk": self.index_topk,
        }  # fmt: skip

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        self.check_gating(where, deepseek2.SIGMOID)
        return self.made(**self.grouped(), **self.further())
