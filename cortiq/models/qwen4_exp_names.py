"""Tensors of Qwen 3.8 Flash Next: their names by role, and the vectors that are made of several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from cortiq.models import qwen3_5, qwen4_exp_gguf
from cortiq.models.formed_vectors import FormedVector
from cortiq.models.names import Names
from cortiq.models.parts import norm_offset
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.contract import F32, Floats, snap

READ: Mapping[str, str] = {
    "norm": "hc_norm.weight", "down": "input_mix_weight_down.weight",
    "up": "input_mix_weight_up.weight", "inject": "block_inject_weight.weight",
}  # fmt: skip
GRAMS: Mapping[str, str] = {
    "table": "ple_embedding.ngram_embedding.weight", "key": "key_proj.weight",
    "value": "value_proj.weight", "gate": "gate.weight", "conv_norm": "norm_conv.weight",
    "conv": "taps.weight",
}  # fmt: skip
INDEX: Mapping[str, str] = {
    "index_q": "q_proj.weight", "index_k": "k_proj.weight", "index_q_norm": "q_layernorm.weight",
    "index_k_norm": "k_layernorm.weight", "index_pool": "pool.weight",
}  # fmt: skip
INDEXER, TABLE = "self_attn.indexer", "ple.ple_embedding.ngram_embedding"
NORMS = ("attn_hyper_connection.hc_norm", "mlp_hyper_connection.hc_norm",
         "model.hyper_connection_mixer.hc_norm", "ple.norm_conv")  # fmt: skip
"""Norms of streams, of which folders hold weights less one."""
DRAFT_NORMS = "mtp.hyper_connection_mixer.hc_norm", "mtp.pre_fc_norm_hidden"
"""The same of the layer that drafts, which only folders have."""
UNREAD = (
    r"model\.layers\.\d+\.ple\.ple_embedding\.(layer_multipliers|ngram_heads_\w+)"
    r"|model\.layers\.\d+\.self_attn\.indexer\..*|blk\.\d+\.indexer\..*"
)
"""What follows from the configuration, and indexers where every window is seen."""


def _above_one(vectors: Sequence[Floats], layer: int, name: str) -> Floats:
    """Return the gains of a norm that a file holds less one."""
    return snap(F32(1) + vectors[0])


def _gates(
    vectors: Sequence[Floats], layer: int, name: str, *, streams: int, offset: float
) -> Floats:
    """Return the weights of two norms, multiplied, by the root of a stream's width."""
    key, query = (F32(offset) + vector.reshape(streams, -1) for vector in vectors)
    return snap(key * query * F32(key.shape[1] ** -0.5))


def _dilated(vectors: Sequence[Floats], layer: int, name: str, *, taps: int, every: int) -> Floats:
    """Return taps with those between that a dilation leaves out."""
    given = vectors[0].reshape(-1, taps)
    out = np.zeros((len(given), (taps - 1) * every + 1), F32)
    out[:, ::every] = given
    return out


def _mean(vectors: Sequence[Floats], layer: int, name: str, *, rows: int) -> Floats:
    """Return the factors of a window's rows, of which a key is the mean."""
    return np.full((vectors[0].size, rows), F32(1 / rows), F32)


def _dotted(name: str) -> str:
    """Return a tensor's name where parts of a table are a list of modules."""
    return re.sub(r"\.shard_(\d+)\.", r".shards.\1.", name)


def names_for(config: Any) -> Names:
    """Return the names of tensors, and of vectors that are made of several."""
    whole, taps = config.hc_count * config.hidden_size, config.ple_conv_kernel_size
    norms = () if config.source == "gguf" else NORMS
    formed = {norm: FormedVector((norm,), whole, _above_one) for norm in norms}
    gates = partial(_gates, streams=config.hc_count, offset=norm_offset(config))
    formed |= {norm: FormedVector((norm,), whole, _above_one) for norm in DRAFT_NORMS}
    formed["ple.gate"] = FormedVector(("ple.norm_key", "ple.norm_query"), whole, gates)
    spread = partial(_dilated, taps=taps, every=config.ngram_size)
    formed["ple.taps"] = FormedVector(("ple.conv1d",), whole * taps, spread)
    mean = partial(_mean, rows=config.indexer_compress_ratio or 1)
    width = config.indexer_head_dim or 1
    formed[f"{INDEXER}.pool"] = FormedVector((f"{INDEXER}.k_layernorm",), width, mean)
    joint = FusedTensor(f"{INDEXER}.index_qk_proj", (f"{INDEXER}.q_proj", f"{INDEXER}.k_proj"))
    shards = tuple(f"{TABLE}.shard_{n}" for n in range(config.split_ngram_parts))
    tables = {f"model.layers.{n - 1}.{TABLE}": qwen4_exp_gguf.TABLE
              for n in config.ple_layer_ids or ()}  # fmt: skip
    return Names(
        gguf={**qwen4_exp_gguf.NAMES, **tables}, fused=(*qwen3_5.NAMES.fused, joint),
        formed=formed, joined={TABLE: shards}, unread=UNREAD, forms=(_dotted,),
    )  # fmt: skip
