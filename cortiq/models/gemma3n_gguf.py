"""Gemma 3n's GGUF metadata and names; projections of copies are two stacks of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

from cortiq.models.config import Amount, BaseConfig, Extended
from cortiq.models.layer_kinds import GLOBAL, LOCAL, by_layer
from cortiq.models.tensor_pieces import FusedTensor

KEYS: Mapping[str, str] = {
    "activation_sparsity_scale": "activation_sparsity_scale",
    "altup.active_idx": "altup_active_idx",
    "altup.num_inputs": "altup_num_inputs",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base_swa": "rope_theta_swa",
}
ENTRY, EXIT = "model.altup_projections", "model.altup_unembed_projections"
NAMES: Mapping[str, str] = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    ENTRY: "altup_proj",
    EXIT: "altup_unembd_proj",
    "altup.correct_output_scale": "altup_correct_scale.weight",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
DIGITS = 5
"""Decimals of a part that is left out: files have its quantile in float32."""


def stacks(copies: int) -> tuple[FusedTensor, ...]:
    """Return the tensors that hold a matrix of every copy but the first."""
    parts = range(copies - 1)
    return tuple(FusedTensor(s, tuple(f"{s}.{n}" for n in parts)) for s in (ENTRY, EXIT))


@dataclass(frozen=True, kw_only=True)
class Gemma3nFields(BaseConfig):
    """Fields of GGUF files.

    Attributes
    ----------
    sliding_window_pattern : whether each layer has a window.
    activation_sparsity_scale : deviations above the mean from where a gate is kept; −∞ keeps all.
    """

    intermediate_size: int | tuple[int, ...] = 16384  # type: ignore[assignment]
    head_dim: int | None = 256
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    sliding_window: int = 512
    sliding_window_pattern: tuple[bool, ...] | None = None
    activation_sparsity_scale: tuple[Extended, ...] | None = None
    final_logit_softcapping: float | None = 30.0
    hidden_size_per_layer_input: int = 256
    altup_active_idx: Amount = Amount(0)
    altup_num_inputs: int = 4
    num_kv_shared_layers: Amount = Amount(15)
    rope_theta_swa: float = 10000.0
    laurel_rank: int = 64
    default_theta: ClassVar[float] = 1000000.0

    def in_folders_form(self) -> dict[str, Any]:
        """Return the fields of `gemma3n.Config` that a folder writes differently."""
        count, windows = self.num_hidden_layers, self.sliding_window_pattern
        if windows is not None:
            windows = by_layer(windows, count, "sliding_window_pattern")
        scales, below = self.activation_sparsity_scale, NormalDist().cdf
        whole = dict(self.rope_parameters)
        share = whole.get("partial_rotary_factor", 1.0)
        local = {"rope_theta": self.rope_theta_swa, "partial_rotary_factor": share}
        return {
            "layer_types": windows and tuple(LOCAL if window else GLOBAL for window in windows),
            "activation_sparsity_pattern": scales
            and tuple(round(below(scale), DIGITS) for scale in scales),
            "vocab_size_per_layer_input": self.vocab_size,
            "rope_parameters": {GLOBAL: whole, LOCAL: local},
        }
