"""DeepSeek V2, V3 and R1 as GGUF files hold them, under one name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from cortiq.errors import FormatError, UnsupportedError
from cortiq.ir import Program
from cortiq.models import deepseek_v2, deepseek_v3
from cortiq.models.config import Amount, BaseConfig, Keys, check_derived
from cortiq.models.gguf_keys import ABSENT, GROUPED_EXPERTS
from cortiq.models.mla import JOINT, LATENT_GGUF
from cortiq.models.names import Names

ARCHITECTURES = ("deepseek2",)
KEYS = Keys(
    gguf={
        **GROUPED_EXPERTS,
        "attention.key_length": "key_length",
        "attention.key_length_mla": "key_length_mla",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.value_length": "value_length",
        "attention.value_length_mla": "value_length_mla",
        "expert_gating_func": "expert_gating_func",
        "rope.dimension_count": "qk_rope_head_dim",
        "rope.scaling.yarn_log_multiplier": "yarn_log_multiplier",
    },
    gguf_absent=ABSENT,
)
NAMES = Names(
    gguf=LATENT_GGUF,
    fused=(JOINT,),
)
SOFTMAX, SIGMOID = 1, 2
"""`expert_gating_func` of V2 and of V3."""
FLASH_LAYERS, FLASH_VOCAB = (47, 48), 154880
"""Layers and vocabulary of GLM 4.7 Flash, whose first files do not say that it takes a sigmoid."""


@dataclass(frozen=True, kw_only=True)
class Config(BaseConfig):
    """Fields of a GGUF file; `key_length_mla` and `value_length_mla` are those of one head.

    Older files have the two without `_mla`, newer ones use those names for the slot's rows.
    """

    rms_norm_eps: float = 1e-6
    kv_lora_rank: int = 512
    q_lora_rank: int | None = None
    qk_rope_head_dim: int = 64
    key_length: int | None = None
    value_length: int | None = None
    key_length_mla: int | None = None
    value_length_mla: int | None = None
    n_routed_experts: int = 64
    num_experts_per_tok: int = 6
    moe_intermediate_size: int = 1408
    n_shared_experts: Amount = Amount(2)
    expert_gating_func: int | None = None
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: Amount = Amount(1)
    num_nextn_predict_layers: Amount = Amount(0)
    yarn_log_multiplier: float | None = None
    own: ClassVar[tuple[str, ...]] = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "max_position_embeddings", "tie_word_embeddings", "source",
        "rms_norm_eps", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "n_routed_experts",
        "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
        "routed_scaling_factor", "first_k_dense_replace",
    )  # fmt: skip

    @property
    def head_width(self) -> int:
        """Values of a head that are rotated."""
        return self.qk_rope_head_dim

    def gating(self) -> int:
        """Return the router's function; where the file has none or 0, as llama.cpp takes it."""
        flash = self.num_hidden_layers in FLASH_LAYERS and self.vocab_size == FLASH_VOCAB
        return self.expert_gating_func or (SIGMOID if flash else SOFTMAX)

    def rope(self) -> dict[str, Any]:
        """Return RoPE parameters; YaRN's multiplier is 0.1 · `mscale`, here `mscale_all_dim`."""
        given = dict(self.rope_parameters)
        if self.yarn_log_multiplier is not None:
            if given.get("rope_type") != "yarn":
                message = "rope.scaling.yarn_log_multiplier without YaRN"
                raise UnsupportedError(message, where="config")
            given["mscale"] = round(10 * self.yarn_log_multiplier, 7)
            given["mscale_all_dim"] = given["mscale"]
        return given

    def shared(self) -> dict[str, Any]:
        """Return the fields that the configurations of both versions have."""
        key = self.key_length_mla or self.key_length
        value = self.value_length_mla or self.value_length
        if key is None or value is None or key <= self.qk_rope_head_dim:
            message = f"keys of {key} and values of {value}, of which {self.qk_rope_head_dim} turn"
            raise FormatError(message, where="config")
        if self.key_length_mla is not None:
            slot = self.kv_lora_rank + self.qk_rope_head_dim
            check_derived("config", key_length=(self.key_length, slot))
        if self.value_length_mla is not None:
            check_derived("config", value_length=(self.value_length, self.kv_lora_rank))
        if self.num_key_value_heads != 1:  # of the slot, in newer files
            heads = self.num_key_value_heads, self.num_attention_heads
            check_derived("config", head_count_kv=heads)
        return {name: getattr(self, name) for name in self.own} | {
            "num_key_value_heads": None, "qk_nope_head_dim": key - self.qk_rope_head_dim,
            "v_head_dim": value, "rope_parameters": self.rope(),
        }  # fmt: skip

    def grouped(self) -> dict[str, Any]:
        """Return the fields of V3, and of families after it, with those of both versions."""
        return self.shared() | {
            "n_group": self.n_group, "topk_group": self.topk_group,
            "norm_topk_prob": self.norm_topk_prob,
            "num_nextn_predict_layers": self.num_nextn_predict_layers,
        }  # fmt: skip

    def check_gating(self, where: str, wanted: int) -> None:
        """Raise UnsupportedError if the file names another function of the router."""
        if (self.expert_gating_func or wanted) != wanted:
            message = f"expert_gating_func = {self.expert_gating_func}"
            raise UnsupportedError(message, where=where)


def build(config: Config, context: int) -> Program:
    """Build the trunk of the version whose router the file names."""
    if config.gating() == SIGMOID:
        return deepseek_v3.build(deepseek_v3.Config(**config.grouped()), context)
    limits = {
        "expert_gating_func": config.gating() == SOFTMAX,
        "expert_group_count": config.n_group == 1,
        "expert_group_used_count": config.topk_group == 1,
        "expert_weights_norm": not config.norm_topk_prob,
    }
    for key, holds in limits.items():
        if not holds:
            raise UnsupportedError(f"this value of {key} with a softmax router", where="config")
    return deepseek_v2.build(deepseek_v2.Config(**config.shared()), context)
