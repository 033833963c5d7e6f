"""Qwen 3.8 Flash Next's GGUF metadata and names: hashes are stored, and norms as 1 + w."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.models.config import Amount, check_derived
from cortiq.models.layer_kinds import GLOBAL, by_layer
from cortiq.models.qwen3_next import GGUF_KEYS, GGUF_NAMES, LinearConfig

KEYS: Mapping[str, str] = {
    **GGUF_KEYS,
    "attention.compress_ratios": "ratios",
    "attention.indexer.head_count": "indexer_n_heads",
    "attention.indexer.key_length": "indexer_head_dim",
    "attention.indexer.top_k": "indexer_budget",
    "embedding_length_per_layer_input": "gram_width",
    "hyper_connection.count": "hc_count",
    "hyper_connection.low_rank": "hc_lowrank",
    "ple.conv_kernel": "ple_conv_kernel_size",
    "ple.eos_token_id": "eos_token_id",
    "ple.head_offsets": "offsets",
    "ple.head_vocab_sizes": "hash_heights",
    "ple.heads_per_ngram": "heads_per_ngram",
    "ple.image_token_id": "image_token_id",
    "ple.layer_multipliers": "factors",
    "ple.layers": "gram_layers",
    "ple.ngram_size": "ngram_size",
}
STREAMS: Mapping[str, str] = {
    "hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up",
    "block_inject_weight": "inject",
}  # fmt: skip
NAMES: Mapping[str, str] = {
    **GGUF_NAMES,
    **{f"{at}_hyper_connection.{name}": f"hc_{own}_{end}" for name, end in STREAMS.items()
       for at, own in (("attn", "attn"), ("mlp", "ffn"))},
    **{f"model.hyper_connection_mixer.{n}": f"output_hc_{end}" for n, end in STREAMS.items()},
    "ple.key_proj": "ple_key", "ple.value_proj": "ple_value", "ple.norm_key": "ple_norm_key",
    "ple.norm_query": "ple_norm_query", "ple.norm_conv": "ple_norm_conv",
    "ple.conv1d": "ple_conv1d", "self_attn.indexer.q_proj": "indexer.q_proj",
    "self_attn.indexer.k_proj": "indexer.k_proj", "self_attn.indexer.q_layernorm": "indexer.q_norm",
    "self_attn.indexer.k_layernorm": "indexer.k_norm",
}  # fmt: skip
TABLE = "per_layer_token_embd"


@dataclass(frozen=True, kw_only=True)
class StoredFields(LinearConfig):
    """Fields of GGUF files.

    Attributes
    ----------
    ratios : rows of a window of each layer, 0 for a delta net.
    gram_layers : layers whose streams are given rows by n-grams, from 0. gram_width : of a row.
    factors, hash_heights, offsets : of the tokens; of the heads, and what is before each.
    """

    intermediate_size: Amount = Amount(0)
    num_key_value_heads: int | None = 2
    num_experts: int = 512
    num_experts_per_tok: int = 10
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    hc_count: int = 4
    hc_lowrank: int = 320
    indexer_n_heads: int
    indexer_head_dim: int
    indexer_budget: int
    ratios: tuple[int, ...] | int
    gram_layers: tuple[int, ...] = ()
    gram_width: int | None = None
    ngram_size: int = 3
    heads_per_ngram: int = 8
    ple_conv_kernel_size: int = 4
    eos_token_id: Amount | None = None
    image_token_id: Amount | None = None
    factors: Sequence | None = None  # type: ignore[type-arg]
    hash_heights: tuple[int, ...] | None = None
    offsets: tuple[int, ...] | None = None
    default_theta: ClassVar[float] = 1e7

    def in_folders_form(self, where: str) -> dict[str, Any]:
        """Return what a folder says otherwise."""
        kinds = self.kinds()
        ratios = by_layer(self.ratios, len(kinds), "attention.compress_ratios")
        (ratio, *others) = {r for r, kind in zip(ratios, kinds, strict=True) if kind == GLOBAL}
        if others or not ratio:
            raise UnsupportedError(f"windows of {sorted(set(ratios))} keys", where=where)
        if len(self.gram_layers) > 1:
            what = f"n-grams of the layers {list(self.gram_layers)}"
            raise UnsupportedError(what, where=where, hint="llama.cpp has those of one layer")
        heights = self.hash_heights or ()
        if self.gram_layers and (self.factors is None or not heights):
            raise FormatError("has n-grams without multipliers or sizes of heads", where=where)
        follows = tuple(accumulate(heights, initial=0))[:-1]
        check_derived(where, **{"ple.head_offsets": (self.offsets, follows)})
        heads = (self.ngram_size - 1) * self.heads_per_ngram
        return {
            "norm_topk_prob": True, "output_gate_type": "sigmoid", "indexer_kv_heads": 1,
            "indexer_compress_ratio": ratio,
            "ple_layer_ids": tuple(n + 1 for n in self.gram_layers),
            "ple_embed_dim": None if self.gram_width is None else self.gram_width * heads,
        }  # fmt: skip
