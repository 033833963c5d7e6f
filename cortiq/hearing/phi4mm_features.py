"""Features of Phi-4 multimodal's sounds: energies in bands, by its processor's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError, UnsupportedError
from cortiq.hearing.features import LARGEST, WHERE
from cortiq.models.config import is_number
from cortiq.numerics.contract import Floats
from cortiq.numerics.spectrogram import EMPHASIS, hamming_log_energies, kaldi_filters

EXTRACTORS = ("Phi4MultimodalFeatureExtractor", "Phi4MMAudioFeatureExtractor")
ONLY: Mapping[str, Any] = {
    "audio_downsample_rate": 1, "audio_feat_stride": 1, "preemphasis": EMPHASIS,
}  # fmt: skip
COUNTS = LARGEST | {"win_length": LARGEST["n_fft"], "audio_compression_rate": 64}


@dataclass(frozen=True)
class Phi4Rules:
    """Rules of a processor's file, named as its keys are; those of the published one by default."""

    feature_size: int = 80
    sampling_rate: int = 16000
    hop_length: int = 160
    n_fft: int = 512
    win_length: int = 400
    audio_compression_rate: int = 8
    mel_min_frequency: float = 0.0
    mel_max_frequency: float = 7690.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Phi4Rules:
        """Return the rules of a file.

        Raises
        ------
        FormatError : a value is no number, or out of all bounds.
        UnsupportedError : a step that is not there.
        """
        kind = given.get("feature_extractor_type", EXTRACTORS[0])
        if kind not in EXTRACTORS:
            raise UnsupportedError(f"feature_extractor_type = {kind!r}", where=WHERE)
        for name, value in ONLY.items():
            if given.get(name, value) != value:
                raise UnsupportedError(f"{name} = {given[name]!r}", where=WHERE)
        values = {name: given.get(name, usual) for name, usual in vars(cls()).items()}
        for name, value in values.items():
            if name not in COUNTS:
                fits = is_number(value) and 0 <= value <= values["sampling_rate"] / 2
            else:
                fits = type(value) is int and 0 < value <= COUNTS[name]
            if not fits:
                raise FormatError(f"{name} is {value!r}", where=WHERE)
        if values["mel_min_frequency"] >= values["mel_max_frequency"]:
            raise FormatError("mel_min_frequency is not below mel_max_frequency", where=WHERE)
        if not 1 < values["win_length"] <= values["n_fft"]:
            what = f"win_length is {values['win_length']}, n_fft {values['n_fft']}"
            raise FormatError(what, where=WHERE)
        return cls(**values)

    def frames_of(self, count: int) -> int:
        """Return the frames of so many samples, which lie within them."""
        return max(0, (count - self.win_length) // self.hop_length + 1)

    def spectrogram(self, samples: Floats) -> Floats:
        """Return the frames of all samples: float32 [frames, bands]."""
        ends = float(self.mel_min_frequency), float(self.mel_max_frequency)
        filters = kaldi_filters(self.feature_size, self.n_fft, self.sampling_rate, *ends)
        sizes = self.win_length, self.n_fft, self.hop_length
        return hamming_log_energies(samples, sizes, filters)
