"""Features of Gemma's sounds: magnitudes in bands, by the rules of its processor's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.hearing.features import LARGEST, WHERE
from cortiq.numerics.contract import Floats
from cortiq.numerics.doubles import Doubles
from cortiq.numerics.spectrogram import (
    EMPHASIS,
    emphasised_log_magnitudes,
    heard_frames,
    htk_filters,
    log_magnitudes,
)

ONLY: Mapping[str, Any] = {
    "dither": 0.0, "input_scale_factor": 1.0, "per_bin_mean": None, "per_bin_stddev": None,
}  # fmt: skip
"""Steps of extractors that are not there, with the values that leave them out."""
BLOCK = 128
"""Samples that Gemma 3n's sounds are whole blocks of."""
FLOATS: Mapping[str, tuple[float, float]] = {
    "frame_length_ms": (1.0, 200.0), "hop_length_ms": (1.0, 200.0), "mel_floor": (1e-12, 1.0),
    "min_frequency": (0.0, 1e5), "max_frequency": (1.0, 1e5),
}  # fmt: skip


@dataclass(frozen=True)
class GemmaRules:
    """Rules of a processor's file, named as its keys are; those of Gemma 4 by default.

    Attributes
    ----------
    only : keys of the file that have one value.
    """

    only: ClassVar[Mapping[str, Any]] = {
        "feature_extractor_type": "Gemma4AudioFeatureExtractor", "preemphasis": 0.0,
        "fft_overdrive": False,
    }  # fmt: skip
    feature_size: int = 128
    sampling_rate: int = 16000
    frame_length_ms: float = 20.0
    hop_length_ms: float = 10.0
    mel_floor: float = 1e-3
    min_frequency: float = 0.0
    max_frequency: float = 8000.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> GemmaRules:
        """Return the rules of a file.

        Raises
        ------
        FormatError : a value is no number, or out of all bounds.
        UnsupportedError : a step that is not there.
        """
        for name, value in {**ONLY, **cls.only}.items():
            if given.get(name, value) != value:
                raise UnsupportedError(f"{name} = {given[name]!r}", where=WHERE)
        values: dict[str, Any] = {}
        for name in ("feature_size", "sampling_rate"):
            value = values[name] = given.get(name, getattr(cls, name))
            if type(value) is not int or not 0 < value <= LARGEST[name]:
                raise FormatError(f"{name} is {value!r}", where=WHERE)
        for name, (least, most) in FLOATS.items():
            value = values[name] = given.get(name, getattr(cls, name))
            if type(value) not in (int, float) or not least <= value <= most:
                raise FormatError(f"{name} is {value!r}", where=WHERE)
        if values["min_frequency"] >= values["max_frequency"]:
            raise FormatError("min_frequency is not below max_frequency", where=WHERE)
        return cls(**values)

    @property
    def length(self) -> int:
        """Samples of a frame."""
        return round(self.sampling_rate * self.frame_length_ms / 1000)

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return max(1, round(self.sampling_rate * self.hop_length_ms / 1000))

    @property
    def least(self) -> int:
        """Samples of a sound at least."""
        return self.length - self.length // 2 + 1

    def frames_of(self, count: int) -> int:
        """Return the frames of so many samples."""
        return heard_frames(count, self.length, self.hop)

    def spectrogram(self, samples: Floats) -> Floats:
        """Return the frames of all samples: float32 [frames, bands]."""
        size = 1 << (self.length - 1).bit_length()
        sizes = self.length, size, self.hop
        return log_magnitudes(samples, sizes, self._filters(size), self.mel_floor)

    def _filters(self, size: int) -> Doubles:
        ends = float(self.min_frequency), float(self.max_frequency)
        return htk_filters(self.feature_size, size, self.sampling_rate, *ends)


@dataclass(frozen=True)
class Gemma3nRules(GemmaRules):
    """Rules of Gemma 3n, whose frames are pre-emphasised and transformed at twice their size."""

    only: ClassVar[Mapping[str, Any]] = {
        "feature_extractor_type": "Gemma3nAudioFeatureExtractor", "preemphasis": EMPHASIS,
        "preemphasis_htk_flavor": True, "fft_overdrive": True,
    }  # fmt: skip
    frame_length_ms: float = 32.0
    mel_floor: float = 1e-5
    min_frequency: float = 125.0
    max_frequency: float = 7600.0

    @property
    def least(self) -> int:
        """Samples of a sound at least: with zeros to a whole block they have a frame."""
        return self.length // BLOCK * BLOCK + 1

    def frames_of(self, count: int) -> int:
        """Return the frames of so many samples, filled up with zeros to whole blocks."""
        return max(0, (-(-count // BLOCK) * BLOCK - self.length - 1) // self.hop + 1)

    def spectrogram(self, samples: Floats) -> Floats:
        """Return the frames of all samples: float32 [frames, bands]."""
        size = 2 << (self.length - 1).bit_length()
        sizes, count = (self.length, size, self.hop), self.frames_of(len(samples))
        padded = np.pad(samples, (0, -len(samples) % BLOCK))
        return emphasised_log_magnitudes(padded, count, sizes, self._filters(size), self.mel_floor)
