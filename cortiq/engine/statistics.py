"""Times and memory of a run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cortiq.engine.draft_statistics import DraftStatistics


def _now() -> float:
    return time.perf_counter()


@dataclass
class Statistics:
    """Counts and seconds of one generation.

    Attributes
    ----------
    load_seconds : from the call of `load` to a compiled model.
    prompt_tokens, generated_tokens : tokens fed before the first one drawn, and tokens drawn.
        Prefill draws the first of these; the others are decoded, one step each if none is drafted.
    reused_tokens : prompt tokens whose rows were there already.
    evicted : cached prefixes that were evicted to make room for this one.
    preempted : how often it was preempted by a more urgent one.
    drafts : counts of its drafters.
    waited : steps that an asynchronous executable was not given ahead, by the reason: the host had
        to know the ids first, for this sequence or another of the batch.
    """

    load_seconds: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    reused_tokens: int = 0
    evicted: int = 0
    preempted: int = 0
    drafts: DraftStatistics = field(default_factory=DraftStatistics)
    waited: Counter[str] = field(default_factory=Counter)
    started: float = field(default_factory=lambda: _now())
    first: float | None = None
    last: float | None = None

    def token_arrived(self) -> None:
        """Count a token drawn, at this moment."""
        self.last = _now()
        self.first = self.last if self.first is None else self.first
        self.generated_tokens += 1

    @property
    def prompt_seconds(self) -> float:
        """From the start to the first token: the prompt, and one draw."""
        return (_now() if self.first is None else self.first) - self.started

    @property
    def decoded_tokens(self) -> int:
        """Tokens drawn after the first one: those that `decode_seconds` were spent on."""
        return max(self.generated_tokens - 1, 0)

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""
        return (self.last or 0.0) - (self.first or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return counts, seconds, rates, peak memory in bytes, and drafting, for JSON."""
        drafted = self.drafts.drafters or self.drafts.error
        drafting = {"drafting": self.drafts.as_dict()} if drafted else {}
        waiting = {"steps_that_waited_for": dict(self.waited)} if self.waited else {}
        return (
            drafting
            | waiting
            | {
                "load_seconds": round(self.load_seconds, 4),
                "prompt_tokens": self.prompt_tokens,
                "reused_tokens": self.reused_tokens,
                "prompt_seconds": round(self.prompt_seconds, 4),
                "prompt_tokens_per_second": _rate(self.prompt_tokens, self.prompt_seconds),
                "generated_tokens": self.generated_tokens,
                "decoded_tokens": self.decoded_tokens,
                "decode_seconds": round(self.decode_seconds, 4),
                "decode_tokens_per_second": _rate(self.decoded_tokens, self.decode_seconds),
                "peak_memory_bytes": peak_memory(),
            }
        )


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 3) if count > 0 and seconds > 0 else None


def peak_memory() -> int | None:
    """Return the largest resident size of this process, in bytes; None where it is unknown."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
