"""Fallback: whether a window's text is kept, or drawn again at a higher temperature."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class WindowScores:
    """Have what is measured of a window's text.

    Attributes
    ----------
    temperature : at which it was drawn.
    mean_logprob : of its tokens, each among those that were allowed.
    compression_ratio : bytes of the text to those of its zlib stream.
    no_speech : probability that nothing is said.
    silent : whether it counts as silence, so that its text is dropped.
    """

    temperature: float
    mean_logprob: float
    compression_ratio: float
    no_speech: float
    silent: bool = False


@dataclass(frozen=True)
class FallbackRules:
    """Rules of Whisper's own decoding.

    Attributes
    ----------
    temperatures : tried in this order, the last of them is kept.
    compression_ratio : above it a text repeats itself.
    mean_logprob : below it a text is a guess.
    no_speech : above it a guess is silence.
    """

    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio: float = 2.4
    mean_logprob: float = -1.0
    no_speech: float = 0.6

    def silent(self, mean_logprob: float, no_speech: float) -> bool:
        """Return whether nothing is said in a window."""
        return mean_logprob < self.mean_logprob and no_speech > self.no_speech

    def keeps(self, scores: WindowScores) -> bool:
        """Return whether a window's text is kept, or dropped as silence: no other is drawn."""
        repeats = scores.compression_ratio > self.compression_ratio
        return scores.silent or not (repeats or scores.mean_logprob < self.mean_logprob)


def mean_logprob(probabilities: Sequence[float]) -> float:
    """Return the mean of the logarithms of probabilities."""
    logs = [math.log(max(p, 1e-30)) for p in probabilities]
    return math.fsum(logs) / max(1, len(logs))


def compression_ratio(text: str) -> float:
    """Return how many times as long a text is as its zlib stream."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
