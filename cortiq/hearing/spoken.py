"""Sounds in prompts: an encoder like Whisper's, whose rows a projector makes rows of a text of."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError
from cortiq.hearing.config import SoundConfig
from cortiq.hearing.decode import sound_of
from cortiq.hearing.features import WHERE, FeatureRules
from cortiq.hearing.whisper import STRIDE
from cortiq.ir.images import ImageRows
from cortiq.numerics.contract import Floats


@dataclass(frozen=True, eq=False)
class SoundWindow:
    """One run of the encoder.

    Attributes
    ----------
    frames : float32 [frames, bands]. count : rows of the encoder, which see one another; those
        after what convolutions make of the frames are zeros.
    squares : int64 [rows, rows of a square]: the rows that each row of the text is made of;
        `count` for one of zeros.
    inputs : what each row of the encoder supplies besides, float32 [count, ...].
    supplied : what each row of the text supplies besides, [rows, ...].
    before : rows that convolutions make of the frames for the window before, to be left out.
    """

    frames: Floats
    count: int
    squares: npt.NDArray[np.int64]
    inputs: Mapping[str, Floats] = field(default_factory=dict)
    supplied: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    before: int = 0

    def taken(self, near: Floats) -> Floats:
        """Return the encoder's rows of those that convolutions made: [count, width]."""
        own = near[self.before : self.before + self.count]
        return np.pad(own, ((0, self.count - len(own)), (0, 0)))


@dataclass(frozen=True, eq=False)
class SpokenSound:
    """A sound as the model hears it: windows in the order of their rows, and what stands for it in
    the text.
    """

    windows: tuple[SoundWindow, ...]
    text: str
    grid: tuple[int, int] = (0, 0)
    medium: ClassVar[str] = "audio"

    @property
    def rows(self) -> int:
        """Rows of the text model that the sound becomes."""
        return sum(len(window.squares) for window in self.windows)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of the frames and of everything that decides their rows."""
        digest = hashlib.sha256()
        for window in self.windows:
            before = [window.before] if window.before else []
            digest.update(json.dumps([window.count, *window.frames.shape, *before]).encode())
            digest.update(np.ascontiguousarray(window.frames, "<f4").tobytes())
            digest.update(json.dumps(window.squares.shape).encode())
            digest.update(np.ascontiguousarray(window.squares, "<i8").tobytes())
            for name, given in (*window.inputs.items(), *window.supplied.items()):
                digest.update(json.dumps([name, *given.shape]).encode())
                kind = "<f4" if given.dtype.kind == "f" else "<i8"
                digest.update(np.ascontiguousarray(given, kind).tobytes())
        digest.update(json.dumps(self.text).encode())
        return digest.hexdigest()


class SoundProcessor(ABC):
    """Makes windows of a family's sounds, and the text that they stand in.

    Attributes
    ----------
    marker : text that a chat template writes for a sound.
    token : id of the rows of sounds; None for one that no text has.
    rows : what the trunk's rows supply besides. ends : ids after these whose rows are of the sound.
    most : frames of a window. numbered, between : see `ImageProcessor`.
    heard_whole : whether the encoder takes windows of the processor's length.
    asked_for : it is read where images are, and on one device: most who load the model write texts.
    """

    medium, numbered = "audio", ""
    between: str | None = None
    marker: str
    token: int | None
    rows, heard_whole, asked_for = ImageRows(), True, False
    ends: tuple[int, ...] = ()

    def __init__(self, config: SoundConfig, given: Mapping[str, Any]) -> None:
        self.config, self.token = config, config.audio_token
        self.most = STRIDE * config.max_source_positions
        self.rules = FeatureRules.of(given, config.num_mel_bins)
        if self.heard_whole and self.rules.frames != self.most:
            what = f"windows of {self.rules.frames} frames: the encoder has"
            what += f" {config.max_source_positions} rows of {STRIDE}"
            raise FormatError(what, where=WHERE)

    def read(self, audio: Any) -> Floats:
        """Return the samples of a sound at the model's rate; RequestError where it has none."""
        return sound_of(audio).at(self.rules.sampling_rate)

    def among(self, sound: SpokenSound, media: Collection[str]) -> SpokenSound:
        """Return a sound as it is in a prompt that has things of these media."""
        return sound

    @abstractmethod
    def rows_of(self, count: int) -> int:
        """Return how many rows so many samples become, before they are prepared."""

    @abstractmethod
    def prepare(self, samples: Floats) -> SpokenSound:
        """Return samples as the model hears them."""
