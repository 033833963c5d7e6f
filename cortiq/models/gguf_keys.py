"""Keys of GGUF metadata, without the architecture's prefix, that several families read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cortiq.formats.sentence_settings import GGUF_POOLING, GGUF_POOLINGS

WINDOW_PATTERN = "attention.sliding_window_pattern"
WINDOWS_BASE = "rope.freq_base_swa"
CLASSIFIER_POOLING = "classifier.pooling_type"
POOLINGS: Mapping[int, str] = GGUF_POOLINGS
"""Names of poolings by their number."""
GGUF_KEYS: Mapping[str, str] = {
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    WINDOW_PATTERN: "layer_types",
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
}
"""GGUF keys, without the architecture's prefix, and the field of a config that each fills."""

GROUPED_EXPERTS: Mapping[str, str] = {
    "expert_count": "n_routed_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": "shared_inner",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "leading_dense_block_count": "first_k_dense_replace",
    "nextn_predict_layers": "num_nextn_predict_layers",
}
"""Keys of experts that are chosen in groups, and fields as DeepSeek and GLM call them."""
ABSENT: Mapping[str, Any] = {
    "expert_group_count": 1, "expert_group_used_count": 1, "expert_weights_norm": False,
    "expert_weights_scale": 1.0, "leading_dense_block_count": 0,
}  # fmt: skip
"""Values of these where a file has none."""
BY_SIGMOID: Mapping[str, Any] = {"expert_gating_func": 2}
"""Key of experts that are weighted by a sigmoid."""

HARMLESS_GGUF = frozenset({
    GGUF_POOLING, "classifier.output_labels", "dense_2_feat_in", "dense_2_feat_out",
    "dense_3_feat_in", "dense_3_feat_out", "n_deepstack_layers", "rope.dimension_sections",
    "rope.scaling.finetuned", "rope.scaling.yarn_attn_factor",
})  # fmt: skip
"""Keys that never change the graph. In a text all axes of a position are one, so that it does not
matter which of them turns which pair. Sizes of dense modules are those of their tensors. llama.cpp
reads `yarn_attn_factor` of Grok alone.
"""

ONLY_GGUF: Mapping[str, Any] = {"attention.causal": True}
"""Keys that would change the graph, accepted with the one value that does not."""
