"""DeepSeek V4's GGUF metadata and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import UnsupportedError
from cortiq.models.config import Amount, BaseConfig, check_derived
from cortiq.models.layer_kinds import by_layer

KEYS: Mapping[str, str] = {
    "attention.compress_ratios": "compress_ratios",
    "attention.compress_rope_freq_base": "compress_rope_theta",
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
    "attention.output_group_count": "o_groups",
    "attention.output_lora_rank": "o_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "embedding_length_out": "streams_width",
    "expert_count": "n_routed_experts",
    "expert_feed_forward_length": "intermediate_size",
    "expert_weights_scale": "routed_scaling_factor",
    "feed_forward_length": "dense_width",
    "hash_layer_count": "num_hash_layers",
    "hyper_connection.count": "hc_mult",
    "hyper_connection.epsilon": "hc_eps",
    "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
    "nextn_predict_layers": "num_nextn_predict_layers",
    "swiglu_clamp_exp": "limits",
    "swiglu_clamp_shexp": "shared_limits",
}
ONLY: Mapping[str, Any] = {
    "expert_gating_func": 4, "expert_group_count": 1, "expert_group_used_count": 1,
    "expert_shared_count": 1, "expert_weights_norm": True,
}  # fmt: skip
COMPRESSOR: Mapping[str, str] = {
    "ape": "ape.weight", "norm.weight": "norm.weight", "wgate.weight": "gate.weight",
    "wkv.weight": "kv.weight",
}  # fmt: skip
NAMES: Mapping[str, str] = {
    "attn.attn_sink": "attn_sinks.weight", "attn.kv_norm": "attn_kv_a_norm",
    "attn.q_norm": "attn_q_a_norm", "attn.wkv": "attn_kv", "attn.wo_a": "attn_output_a",
    "attn.wo_b": "attn_output_b", "attn.wq_a": "attn_q_a", "attn.wq_b": "attn_q_b",
    "attn.indexer.weights_proj": "indexer.proj", "attn.indexer.wq_b": "indexer.attn_q_b",
    **{f"attn.{within}compressor.{name}": f"{own}_compressor_{end}"
       for name, end in COMPRESSOR.items()
       for within, own in (("", "attn"), ("indexer.", "indexer"))},
    "attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "ffn.gate": "ffn_gate_inp",
    "ffn.gate.bias": "exp_probs_b.bias", "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    **{f"ffn.{kind}.{w}": f"ffn_{role}_{end}"
       for w, role in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
       for kind, end in (("experts", "exps"), ("shared_experts", "shexp"))},
    **{f"hc_{of}_{part}": f"hc_{of}_{part}.weight"
       for of in ("attn", "ffn") for part in ("fn", "base", "scale")},
    **{f"model.hc_head.hc_{part}": f"output_hc_{part}.weight" for part in ("fn", "base", "scale")},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CompressedFields(BaseConfig):
    """Fields that only GGUF files have.

    Attributes
    ----------
    limits, shared_limits : bounds of gates of each layer's experts, and of those all tokens pass.
    streams_width, dense_width : widths of which nothing is made.
    """

    limits: float | tuple[float, ...] = 0.0
    shared_limits: float | tuple[float, ...] | None = None
    streams_width: int | None = None
    dense_width: int | None = None
    compress_ratios: tuple[int, ...] = ()
    num_nextn_predict_layers: Amount = Amount(0)
    num_hash_layers: Amount = Amount(0)

    def bound(self, where: str) -> float:
        """Return the bound of all gates.

        Raises
        ------
        UnsupportedError : layers differ in it, or have none.
        """
        count = self.num_hidden_layers
        values = {*by_layer(self.limits, count, "swiglu_clamp_exp")}
        if self.shared_limits is not None:
            values |= {*by_layer(self.shared_limits, count, "swiglu_clamp_shexp")}
        if len(values) != 1 or min(values) <= 0:
            message = f"gates are bounded by {sorted(values)}, not all by one number above 0"
            raise UnsupportedError(message, where=where)
        return float(values.pop())

    def check_widths(self, streams: int, where: str) -> None:
        """Raise FormatError unless the streams are as wide as they are said to be."""
        total = self.hidden_size * streams
        check_derived(where, embedding_length_out=(self.streams_width, total))
