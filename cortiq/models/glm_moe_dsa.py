"""GLM 5: DeepSeek V3.2's sparse attention and experts; layers may share an indexer's choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from cortiq.errors import UnsupportedError
from cortiq.models import deepseek_v32
from cortiq.models.config import Amount
from cortiq.models.layer_kinds import layer_list

ARCHITECTURES = ("glm_moe_dsa",)
GGUF: tuple[str, ...] = ()
KEYS = replace(deepseek_v32.KEYS, only={**deepseek_v32.KEYS.only, "indexer_rope_interleave": True})
NAMES = deepseek_v32.NAMES
build = deepseek_v32.build
FULL, SHARED = "full", "shared"


@dataclass(frozen=True, kw_only=True)
class Config(deepseek_v32.Config):
    """Fields of `GlmMoeDsaConfig`."""

    num_key_value_heads: int | None = 64
    max_position_embeddings: int = 202752
    rms_norm_eps: float = 1e-5
    q_lora_rank: int | None = 2048
    qk_nope_head_dim: int = 192
    v_head_dim: int = 256
    n_group: int = 1
    topk_group: int = 1
    index_n_heads: int = 32
    indexer_types: tuple[str, ...] | None = None
    index_topk_pattern: str | None = None
    index_topk_freq: int = 1
    index_skip_topk_offset: Amount = Amount(2)
    family: ClassVar[str] = "glm_moe_dsa"
    index_pairing: ClassVar[str] = "interleaved"

    def indexed(self) -> tuple[bool, ...]:
        """Return which layers have an indexer: by the list, by the pattern, or every so many."""
        layers, pattern = self.num_hidden_layers, self.index_topk_pattern
        start, every = int(self.index_skip_topk_offset) - 1, self.index_topk_freq
        kinds = self.indexer_types
        if kinds is None and pattern is not None:
            kinds = tuple({"F": FULL, "S": SHARED}.get(letter, letter) for letter in pattern)
        elif kinds is None:
            kinds = tuple(SHARED if max(n - start, 0) % every else FULL for n in range(layers))
        listed = layer_list(kinds, layers, (FULL, SHARED), "indexer_types")
        if listed[0] != FULL:
            raise UnsupportedError("a first layer that shares a choice", where="config")
        return tuple(kind == FULL for kind in listed)
