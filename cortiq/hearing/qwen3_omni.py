"""Qwen3-Omni's hearing: three convolutions over pieces of 1 s, Whisper's layers, two matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, RequestError
from cortiq.hearing import config as encoders
from cortiq.hearing import whisper
from cortiq.hearing.config import SoundConfig, sound_values
from cortiq.hearing.grid import KERNEL, halved, write_entry
from cortiq.hearing.spoken import SoundProcessor, SoundWindow, SpokenSound
from cortiq.hearing.whisper import FRAME, HIDDEN, PLACED, written
from cortiq.ir import Builder, Program, Value
from cortiq.ir.encoders import PROJECTOR, ROWS, SQUARE
from cortiq.ir.layers import LayerNorm, Linear
from cortiq.ir.ops import Activation
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.opt import EPS
from cortiq.models.parts import activation
from cortiq.numerics.contract import Floats
from cortiq.numerics.sinusoids import sinusoids

ARCHITECTURES = ("qwen3_omni_moe_thinker",)
KEYS = Keys(
    aliases=encoders.KEYS.aliases,
    harmless=encoders.KEYS.harmless | {"conv_chunksize"},
    only=encoders.KEYS.only,
)
PREFIXES, NAMES = encoders.PREFIXES, Names()
AUDIO = "<|audio_pad|>"
CONVOLUTIONS = 3


@dataclass(frozen=True, kw_only=True)
class Config(SoundConfig):
    """Fields of `Qwen3OmniMoeAudioEncoderConfig`.

    Attributes
    ----------
    n_window : half the frames of a piece, which is convolved by itself.
    n_window_infer : frames whose rows see one another. output_dim : width of the text's rows.
    downsample_hidden_size : channels of the convolutions.
    """

    n_window: int = 50
    n_window_infer: int = 800
    output_dim: int = 3584
    downsample_hidden_size: int = 480

    @property
    def piece(self) -> int:
        """Frames of a piece."""
        return 2 * self.n_window

    @property
    def piece_rows(self) -> int:
        """Rows of a piece."""
        return halved(self.piece, CONVOLUTIONS)

    @property
    def pieces(self) -> int:
        """Pieces of a window, whose rows see one another."""
        return self.n_window_infer // max(self.piece, 1)


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return sound_values(whole, token="audio_token_id")


def build(config: Config, most: int) -> Program:
    """Build encoder and projector."""
    width, channels = config.hidden_size, config.downsample_hidden_size
    what = ""
    if config.output_dim != config.text_width:
        what = f"rows of {config.output_dim} for a text's of {config.text_width}"
    elif min(config.n_window, config.pieces) < 1 or config.piece_rows > config.max_source_positions:
        what = f"windows of {config.n_window_infer} frames in pieces of {config.piece}"
    elif width % 2 or width < 4:
        what = f"rows of {width} have no sines and cosines"
    if what:
        raise FormatError(what, where="config")

    def reduced(b: Builder) -> Value:
        inner = channels * halved(config.num_mel_bins, CONVOLUTIONS)
        frame = b.input(FRAME, (inner,), "f32")
        return written(b, Linear(inner, width), frame, "reduced", "encoder.conv_out")

    b, x = whisper.encoder(config, "qwen3_omni", supplied=True, first=reduced, key_biased=True)
    written(b, LayerNorm(width, EPS), x, HIDDEN, "encoder.ln_post")
    b.graph("trunk", (HIDDEN,))
    for n in range(CONVOLUTIONS):
        bands = halved(config.num_mel_bins, n + 1)
        op = Linear(KERNEL**2 * (channels if n else 1), channels, biased=True)
        write_entry(b, n, bands, op, f"encoder.conv2d{n + 1}", _gelu)
    b.input("position")
    square = b.input(SQUARE, (width,), "f32")
    y = written(b, Linear(width, width, biased=True), square, "up", "encoder.proj1")
    y = b.add(Activation(activation(config.hidden_act)), y, name="activation")
    written(b, Linear(width, config.text_width, biased=True), y, ROWS, "encoder.proj2")
    b.graph(PROJECTOR, (ROWS,))
    return b.program()


def _gelu(b: Builder, x: Value, name: str) -> Value:
    return b.add(Activation("gelu"), x, name=name)


class Processor(SoundProcessor):
    """Windows of whole pieces up to the sound's end; positions begin anew in each piece."""

    marker, heard_whole = AUDIO, False
    config: Config

    def rows_of(self, count: int) -> int:
        """Return the rows of all windows."""
        whole, rest = divmod(count // self.rules.hop_length, self.config.piece)
        return whole * self.config.piece_rows + halved(rest, CONVOLUTIONS)

    def prepare(self, samples: Floats) -> SpokenSound:
        """Return windows of the spectrogram, whose last piece is filled up with zeros where it is
        not the only one; RequestError for a sound of less than a frame.
        """
        rules, size = self.rules, self.config.piece
        least = max(rules.hop_length, rules.n_fft // 2 + 1)
        if len(samples) < least:
            what = f"a sound of {len(samples)} samples is too short to be heard"
            raise RequestError(what, where="audio", hint=f"give at least {least}")
        frames = rules.spectrogram(samples)
        if len(frames) > size:
            frames = np.pad(frames, ((0, -len(frames) % size), (0, 0)))
        pieces = frames.reshape(-1, min(size, len(frames)), frames.shape[1])
        rows = self.rows_of(len(samples))
        every = self.config.pieces
        windows = tuple(
            self._window(pieces[n : n + every], rows - n * self.config.piece_rows)
            for n in range(0, len(pieces), every)
        )
        return SpokenSound(windows, AUDIO * rows)

    def _window(self, pieces: Floats, left: int) -> SoundWindow:
        each = halved(pieces.shape[1], CONVOLUTIONS)
        count = min(left, len(pieces) * each)
        places = sinusoids(each, self.config.hidden_size)[np.arange(count) % each]
        return SoundWindow(pieces, count, np.arange(count)[:, None], {PLACED: places})
