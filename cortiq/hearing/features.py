"""Features: what of a sound a model hears, by the rules of its processor's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.numerics.contract import Floats
from cortiq.numerics.spectrogram import log_mel

WHERE = "preprocessor_config.json"
LARGEST = {"sampling_rate": 1 << 17, "n_fft": 1 << 12, "hop_length": 1 << 12,
           "feature_size": 512, "chunk_length": 300}  # fmt: skip


@dataclass(frozen=True, eq=False)
class PreparedSound:
    """A window of sound as the model hears it: float32 [frames, bands]."""

    frames: Floats

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of the frames."""
        digest = hashlib.sha256(json.dumps(list(self.frames.shape)).encode())
        digest.update(np.ascontiguousarray(self.frames, "<f4").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class FeatureRules:
    """Rules of a processor's file, named as its keys are; those of Whisper by default."""

    feature_size: int = 80
    sampling_rate: int = 16000
    n_fft: int = 400
    hop_length: int = 160
    chunk_length: int = 30

    @classmethod
    def of(cls, given: Mapping[str, Any], bands: int) -> FeatureRules:
        """Return the rules of a file.

        Parameters
        ----------
        bands : that the model has, which the file repeats.

        Raises
        ------
        FormatError : a value is no count, or contradicts the model.
        UnsupportedError : a step that is not there.
        """
        kind = given.get("feature_extractor_type", "WhisperFeatureExtractor")
        if kind != "WhisperFeatureExtractor" or given.get("dither"):
            what = f"feature_extractor_type = {kind!r}, dither = {given.get('dither')!r}"
            raise UnsupportedError(what, where=WHERE)
        values = {"feature_size": bands}
        for name, most in LARGEST.items():
            value = given.get(name, values.get(name, getattr(cls, name)))
            if type(value) is not int or not 0 < value <= most:
                raise FormatError(f"{name} is {value!r}", where=WHERE)
            values[name] = value
        if values["feature_size"] != bands:
            what = f"feature_size is {values['feature_size']}, the model has {bands} bands"
            raise FormatError(what, where=WHERE)
        if values["n_fft"] // 2 >= values["chunk_length"] * values["sampling_rate"]:
            raise FormatError(f"n_fft is {values['n_fft']}, a window is shorter", where=WHERE)
        return cls(**values)

    @property
    def window(self) -> int:
        """Samples of a window."""
        return self.chunk_length * self.sampling_rate

    @property
    def frames(self) -> int:
        """Frames of a window."""
        return self.window // self.hop_length

    def prepare(self, samples: Floats) -> PreparedSound:
        """Return the first window of samples, filled up with zeros, as the model hears it."""
        whole = np.zeros(self.window, np.float32)
        part = samples[: self.window]
        whole[: len(part)] = part
        return PreparedSound(self.spectrogram(whole))

    def spectrogram(self, samples: Floats) -> Floats:
        """Return the frames of all samples: float32 [frames, bands]."""
        how = self.n_fft, self.hop_length, self.feature_size, self.sampling_rate
        return log_mel(samples, *how)
