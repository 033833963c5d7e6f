"""Mistral 4: DeepSeek V3 with experts by softmax, and queries that grow with the position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.ir.layers import LatentAttention
from cortiq.models import deepseek2, deepseek_v3
from cortiq.models.config import Amount, Keys
from cortiq.models.mla import LATENT_GGUF
from cortiq.models.rope import grown_table
from cortiq.models.tensor_pieces import FusedTensor
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.rope_scaling import Growth, Proportional
from cortiq.numerics.route import Router

ARCHITECTURES = ("mistral4",)
KEYS = Keys(
    aliases={"num_local_experts": "n_routed_experts"},
    same_as={"head_dim": "qk_head_dim"},
    gguf=deepseek2.KEYS.gguf,
    gguf_absent=deepseek2.KEYS.gguf_absent,
)
STACKS = (
    FusedTensor(
        "mlp.experts.gate_up_proj", ("mlp.experts.gate_proj", "mlp.experts.up_proj"), bare=True
    ),
    FusedTensor("mlp.experts.down_proj", ("mlp.experts.down_proj",), bare=True),
)
NAMES = replace(deepseek_v3.NAMES, gguf=LATENT_GGUF, fused=(*deepseek_v3.NAMES.fused, *STACKS))
build = deepseek_v3.build


@dataclass(frozen=True, kw_only=True)
class Config(deepseek_v3.Config):
    """Fields of `Mistral4Config`."""

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 1048576
    q_lora_rank: int | None = 1024
    kv_lora_rank: int = 256
    qk_nope_head_dim: int = 64
    n_routed_experts: int = 128
    num_experts_per_tok: int = 4
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    first_k_dense_replace: Amount = Amount(0)
    family: ClassVar[str] = "mistral4"
    chosen_with_bias: ClassVar[bool] = False

    def router(self) -> Router:
        """Return the choice of experts."""
        return replace(super().router(), kind="softmax")

    def mixer(self, context: int) -> LatentAttention:
        """Return a layer's attention, whose queries grow in both of their parts."""
        mixer = deepseek_v3.Config.mixer(self._turned(), context)
        grown = grown_table(self, mixer.rope) if mixer.rope else None
        if grown is None or not isinstance(grown.scaling, Growth):
            return mixer
        still = replace(grown.scaling, inner=Proportional(0.0))
        nope = RopeTable(grown.base, self.qk_nope_head_dim, still)
        return replace(mixer, query_rope=grown, nope_rope=nope)

    def _turned(self) -> Config:
        """Return the configuration without the rotated share, which is of the whole head."""
        rope = {k: v for k, v in self.rope_parameters.items() if k != "partial_rotary_factor"}
        return replace(self, rope_parameters=rope)


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(deepseek2.Config):
    """Fields of GGUF files, whose queries do not grow."""

    def config(self, where: str) -> Config:
        """Return the configuration in a folder's form."""
        self.check_gating(where, deepseek2.SOFTMAX)
        return Config(**self.grouped())
