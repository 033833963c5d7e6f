"""Gemma 4's GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError
from cortiq.models.config import Amount, BaseConfig, check_derived
from cortiq.models.layer_kinds import GLOBAL, LOCAL, by_layer, single_count

KEYS: Mapping[str, str] = {
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "attention.value_length": "value_length",
    "attention.value_length_swa": "value_length_swa",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_used_count": "top_k_experts",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.dimension_count": "rope_dimension_count",
    "rope.dimension_count_swa": "rope_dimension_count_swa",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_theta_swa",
}
TENSORS: Mapping[str, str] = {
    "enable_moe_block": "blk.*.ffn_gate_inp.weight",
    "attention_bias": "blk.*.attn_q.bias",
}
NAMES: Mapping[str, str] = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "layer_scalar": "layer_output_scale.weight",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.gate_proj": "ffn_gate_exps",
    "experts.up_proj": "ffn_up_exps",
    "experts.down_proj": "ffn_down_exps",
}
UNTURNED = 1e29
"""A divisor of frequencies from here on stands for a pair that is not turned."""


@dataclass(frozen=True, kw_only=True)
class GGUFFields(BaseConfig):
    """Fields of GGUF files; heads and widths may be lists by layer. KV heads of layers without a
    window use their keys as values.

    Attributes
    ----------
    sliding_window_pattern : whether each layer has a window.
    final_logit_softcapping : 30 where a file says nothing, as in llama.cpp; 0 is no bound.
    """

    num_key_value_heads: int | tuple[int, ...] | None = 4  # type: ignore[assignment]
    intermediate_size: int | tuple[int, ...] = 0  # type: ignore[assignment]
    head_dim: int | None = 256
    global_head_dim: int = 512
    value_length: int | None = None
    value_length_swa: int | None = None
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    sliding_window: int = 512
    sliding_window_pattern: tuple[bool, ...] = ()
    final_logit_softcapping: float | None = 30.0
    hidden_size_per_layer_input: Amount = Amount(0)
    num_kv_shared_layers: Amount = Amount(0)
    enable_moe_block: bool = False
    num_experts: int | None = None
    top_k_experts: int | None = None
    moe_intermediate_size: int | None = None
    rope_dimension_count: int | None = None
    rope_dimension_count_swa: int | None = None
    rope_theta: float = 10000.0
    rope_theta_swa: float = 10000.0

    def in_folders_form(self) -> dict[str, Any]:
        """Return the fields of `gemma4.Config` that a folder writes differently."""
        count, first = self.num_hidden_layers, self.num_hidden_layers - self.num_kv_shared_layers
        local = by_layer(self.sliding_window_pattern, count, "sliding_window_pattern")
        heads = by_layer(self.num_key_value_heads, count, "head_count_kv")
        own = [h for h, window in zip(heads, local, strict=True) if window]
        whole = [h for h, window in zip(heads, local, strict=True) if not window]
        check_derived(
            "config",
            rope_dimension_count=(self.rope_dimension_count, self.global_head_dim),
            value_length=(self.value_length, self.global_head_dim),
            value_length_swa=(self.value_length_swa, self.head_width),
        )
        experts = self.num_experts, self.top_k_experts, self.moe_intermediate_size
        if not self.enable_moe_block and any(experts):
            raise FormatError("says how many experts it has, and holds none", where="config")
        widths = by_layer(self.intermediate_size, count, "feed_forward_length")
        narrow = single_count(widths[:first], "feed_forward_length")
        shared = single_count(widths[first:], "feed_forward_length")
        return {
            "layer_types": tuple(LOCAL if window else GLOBAL for window in local),
            "num_key_value_heads": single_count(own or whole, "head_count_kv"),
            "num_global_key_value_heads": single_count(whole, "head_count_kv"),
            "attention_k_eq_v": isinstance(self.num_key_value_heads, tuple),
            "intermediate_size": narrow,
            "use_double_wide_mlp": shared not in (None, narrow),
            "final_logit_softcapping": self.final_logit_softcapping or None,
            "vocab_size_per_layer_input": self.vocab_size,
            "rope_parameters": {GLOBAL: self._global_rope(), LOCAL: self._local_rope()},
        }

    def _global_rope(self) -> dict[str, Any]:
        """Return the rope of layers without a window: only the first pairs turn."""
        given = {**self.rope_parameters, "rope_theta": self.rope_theta}
        given["partial_rotary_factor"] = 1.0
        factors = given.get("factors", ())
        turned = sum(factor == 1.0 for factor in factors)
        if (
            turned
            and set(factors[:turned]) == {1.0}
            and all(f >= UNTURNED for f in factors[turned:])
        ):
            del given["factors"]
            share = turned / len(factors)
            given |= {"rope_type": "proportional", "partial_rotary_factor": share}
        return given

    def _local_rope(self) -> dict[str, Any]:
        dim = self.rope_dimension_count_swa or self.head_width
        return {
            "rope_type": "default", "rope_theta": self.rope_theta_swa,
            "partial_rotary_factor": dim / self.head_width,
        }  # fmt: skip
