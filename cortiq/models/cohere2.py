"""Command A and R7B: Command R with windows; layers without one rotate nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cortiq.models import cohere
from cortiq.models.config import Keys
from cortiq.models.layer_kinds import windows

ARCHITECTURES = ("cohere2",)
KEYS = Keys(
    aliases={"_sliding_window_pattern": "sliding_window_pattern"},
    harmless=frozenset({"cache_implementation", "order_of_interleaved_layers", "rotary_pct"}),
    only={
        "layer_switch": 4, "position_embedding_type": "rope_gptj", "use_embedding_sharing": True,
        "use_gated_activation": True, "use_parallel_block": True,
        "use_parallel_embedding": False,
    },
    gguf=cohere.KEYS.gguf,
    gguf_tensors=cohere.BIASED,
)  # fmt: skip
NAMES = cohere.NAMES
build = cohere.build


@dataclass(frozen=True, kw_only=True)
class Config(cohere.CommonConfig):
    """Fields of `Cohere2Config`."""

    sliding_window: int = 4096
    sliding_window_pattern: int = 4
    layer_types: tuple[str, ...] | None = None
    windows_turn: ClassVar[bool] = True
    default_theta: ClassVar[float] = 10000.0
    family: ClassVar[str] = "cohere2"

    def windows(self) -> tuple[int | None, ...]:
        """Return the window of every layer, `None` for full attention."""
        layers, pattern = range(self.num_hidden_layers), self.sliding_window_pattern
        if self.layer_types is None:
            return tuple(self.sliding_window if (n + 1) % pattern else None for n in layers)
        return windows(self.layer_types, len(layers), self.sliding_window)

    def rotates(self, window: int | None) -> bool:
        """Return whether a layer turns queries and keys: if it has a window."""
        return window is not None
