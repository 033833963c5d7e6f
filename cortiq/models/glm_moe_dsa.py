"""GLM 5: DeepSeek V3.2's sparse attention and experts; layers may share an indexer's choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cortiq.errors import UnsupportedError
from cortiq.models import deepseek_v32
from cortiq.models.config import Amount
from cortiq.models.layer_kinds import by_layer, layer_list

ARCHITECTURES = ("glm_moe_dsa", "glm-dsa")
GGUF = ("glm-dsa",)
KEYS = replace(
    deepseek_v32.KEYS,
    only={**deepseek_v32.KEYS.only, "indexer_rope_interleave": True},
    gguf={**deepseek_v32.KEYS.gguf, "attention.indexer.types": "indexed"},
)
NAMES = deepseek_v32.NAMES
build = deepseek_v32.build
FULL, SHARED = "full", "shared"
LONG = 1048576
"""Context from which on files that list no indexers are of GLM 5.2, where four layers share one."""


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

    def listed_indexers(self) -> tuple[bool, ...]:
        """Return which layers have an indexer: by the list, by the pattern, or every so many."""
        layers, pattern = self.num_hidden_layers, self.index_topk_pattern
        start, every = int(self.index_skip_topk_offset) - 1, self.index_topk_freq
        kinds = self.indexer_types
        if kinds is None and pattern is not None:
            kinds = tuple({"F": FULL, "S": SHARED}.get(letter, letter) for letter in pattern)
        elif kinds is None:
            kinds = tuple(SHARED if max(n - start, 0) % every else FULL for n in range(layers))
        listed = layer_list(kinds, layers, (FULL, SHARED), "indexer_types")
        return tuple(kind == FULL for kind in listed)

    def indexed(self) -> tuple[bool, ...]:
        """Return which layers have an indexer; the others attend to what the last one chose."""
        own = self.listed_indexers()
        if not own[0]:
            raise UnsupportedError("a first layer that shares a choice", where="config")
        return own


@dataclass(frozen=True, kw_only=True)
class GGUFConfig(deepseek_v32.GGUFConfig):
    """Fields of GGUF files.

    Attributes
    ----------
    indexed : whether each layer has an indexer; where the file does not say, by its context.
    """

    indexed: tuple[bool, ...] = ()
    made: ClassVar[type[deepseek_v32.Config]] = Config

    def further(self) -> dict[str, Any]:
        """Return the fields that are not those of DeepSeek V3."""
        count, long = self.num_hidden_layers, self.max_position_embeddings >= LONG
        usual = tuple(n < 2 or n % 4 == 2 or not long for n in range(count))
        kinds = by_layer(self.indexed or usual, count, "indexer.types")
        named = tuple(FULL if own else SHARED for own in kinds)
        return super().further() | {"indexer_types": named}
