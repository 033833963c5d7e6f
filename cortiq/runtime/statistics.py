"""Times and memory of a run."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field


@dataclass
class Statistics:
    """Counts and seconds of one generation.

    Attributes
    ----------
    load_seconds : from the call of `load` to a compiled model.
    prompt_tokens, generated_tokens : tokens fed before the first one drawn, and tokens drawn.
    """

    load_seconds: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    started: float = field(default_factory=time.perf_counter)
    first: float | None = None
    last: float | None = None

    def token_arrived(self) -> None:
        """Count a token drawn, at this moment."""
        self.last = time.perf_counter()
        self.first = self.last if self.first is None else self.first
        self.generated_tokens += 1

    @property
    def prompt_seconds(self) -> float:
        """From the start to the first token: the prompt, and one draw."""
        return (self.first or time.perf_counter()) - self.started

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""
        return (self.last or 0.0) - (self.first or 0.0)

    def as_dict(self) -> dict[str, float | int | None]:
        """For JSON: counts, seconds, tokens per second, and peak memory in bytes."""
        decoded = self.generated_tokens - 1
        return {
            "load_seconds": round(self.load_seconds, 4),
            "prompt_tokens": self.prompt_tokens,
            "prompt_seconds": round(self.prompt_seconds, 4),
            "prompt_tokens_per_second": _rate(self.prompt_tokens, self.prompt_seconds),
            "generated_tokens": self.generated_tokens,
            "decode_seconds": round(self.decode_seconds, 4),
            "decode_tokens_per_second": _rate(decoded, self.decode_seconds),
            "peak_memory_bytes": peak_memory(),
        }


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if count > 0 and seconds > 0 else None


def peak_memory() -> int | None:
    """The largest resident size this process has had, in bytes; None where nobody counts it."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
