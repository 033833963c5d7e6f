"""Voxtral: Whisper's encoder, neighbouring rows side by side, two matrices; windows to the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError
from cortiq.formats.checkpoint import Checkpoint
from cortiq.hearing import config as encoders
from cortiq.hearing import whisper
from cortiq.hearing.config import SoundConfig, sound_values
from cortiq.hearing.spoken import SoundProcessor, SoundWindow, SpokenSound
from cortiq.hearing.whisper import HIDDEN, written
from cortiq.ir import Program
from cortiq.ir.encoders import PROJECTOR, ROWS, SQUARE
from cortiq.ir.layers import LayerNorm, Linear
from cortiq.ir.ops import Activation
from cortiq.models.names import Names
from cortiq.models.opt import EPS
from cortiq.models.parts import activation
from cortiq.numerics.contract import Floats
from cortiq.numerics.sinusoids import sinusoids

ARCHITECTURES = ("voxtral",)
KEYS, PREFIXES, NAMES = encoders.KEYS, encoders.PREFIXES, Names()
AUDIO, PLACES, MOST = "[AUDIO]", "encoder.embed_positions.weight", 1 << 16
"""The text of a row, the table of places, and the most that are computed."""


@dataclass(frozen=True, kw_only=True)
class Config(SoundConfig):
    """Fields of `VoxtralEncoderConfig`, and of the projector."""

    projector_hidden_act: str = "gelu"

    @property
    def pool(self) -> int:
        """Rows of the encoder that a row of the text is made of."""
        return self.intermediate_size // self.hidden_size


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return sound_values(whole, "projector_hidden_act", token="audio_token_id")


def build(config: Config, most: int) -> Program:
    """Build encoder and projector."""
    width, inner = config.hidden_size, config.intermediate_size
    if config.pool * width != inner or config.max_source_positions % config.pool:
        what = f"{config.max_source_positions} rows of {width} make no rows of {inner}"
        raise FormatError(what, where="config")
    b, x = whisper.encoder(config, "voxtral")
    written(b, LayerNorm(width, EPS), x, HIDDEN, "encoder.layer_norm")
    whisper.finish(b, config)
    b.input("position")
    square = b.input(SQUARE, (inner,), "f32")
    y = written(b, Linear(inner, config.text_width), square, "up", "projector.linear_1")
    y = b.add(Activation(activation(config.projector_hidden_act)), y, name="activation")
    written(b, Linear(config.text_width, config.text_width), y, ROWS, "projector.linear_2")
    b.graph(PROJECTOR, (ROWS,))
    return b.program()


def computed(config: Config, part: Checkpoint) -> dict[str, Floats]:
    """Return Whisper's sines and cosines for a folder that has no places, as Mistral's own."""
    width, rows = config.hidden_size, config.max_source_positions
    if PLACES in part:
        return {}
    found = part.info("encoder.conv2.weight").shape[0]
    if found != width or width % 2 or rows > MOST:
        what = f"{rows} places of {width} values: the convolution makes {found}"
        raise FormatError(what, where=str(part.path))
    return {PLACES: sinusoids(rows, width)}


class Processor(SoundProcessor):
    """As many windows as the sound needs, all rows of each."""

    marker = AUDIO
    config: Config

    def rows_of(self, count: int) -> int:
        """Return the rows of all windows."""
        windows = -(-count // self.rules.window)
        return windows * (self.config.max_source_positions // self.config.pool)

    def prepare(self, samples: Floats) -> SpokenSound:
        """Return windows of the spectrogram of all samples, filled up with zeros."""
        whole = np.pad(samples, (0, -len(samples) % self.rules.window))
        frames = self.rules.spectrogram(whole)
        rows = self.config.max_source_positions
        squares = np.arange(rows).reshape(-1, self.config.pool)
        windows = tuple(
            SoundWindow(frames[start : start + self.most], rows, squares)
            for start in range(0, len(frames), self.most)
        )
        return SpokenSound(windows, AUDIO * (len(windows) * len(squares)))
