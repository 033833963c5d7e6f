"""Qwen2.5-Omni's hearing: Whisper's layers over windows of 2 s, means of two rows, a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, RequestError
from cortiq.hearing import config as encoders
from cortiq.hearing import whisper
from cortiq.hearing.config import SoundConfig, sound_values
from cortiq.hearing.qwen2_audio import AUDIO, POOL
from cortiq.hearing.spoken import SoundProcessor, SoundWindow, SpokenSound
from cortiq.hearing.whisper import HIDDEN, PLACED, STRIDE, written
from cortiq.ir import Program
from cortiq.ir.encoders import PROJECTOR, ROWS, SHARES, SQUARE
from cortiq.ir.layers import LayerNorm, Linear
from cortiq.ir.ops import CombineExperts
from cortiq.models.names import Names
from cortiq.models.opt import EPS
from cortiq.numerics.contract import Floats
from cortiq.numerics.sinusoids import sinusoids

ARCHITECTURES = ("qwen2_5_omni_thinker",)
KEYS, PREFIXES = encoders.KEYS, encoders.PREFIXES
NAMES = Names(unread=r"encoder\.audio_bos_eos_token\..*")


@dataclass(frozen=True, kw_only=True)
class Config(SoundConfig):
    """Fields of `Qwen2_5OmniAudioEncoderConfig`.

    Attributes
    ----------
    n_window : rows of the encoder that see one another. output_dim : width of the text's rows.
    """

    n_window: int = 100
    output_dim: int = 3584


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return sound_values(whole, token="audio_token_index,audio_token_id")


def build(config: Config, most: int) -> Program:
    """Build encoder and projector."""
    width = config.hidden_size
    if config.output_dim != config.text_width or config.n_window % POOL:
        what = f"rows of {config.output_dim} for a text's of {config.text_width}"
        what += f", windows of {config.n_window} rows"
        raise FormatError(what, where="config")
    if width % 2 or width < 4:
        raise FormatError(f"rows of {width} have no sines and cosines", where="config")
    b, _ = whisper.encoder(config, "qwen2_5_omni", HIDDEN, supplied=True)
    whisper.finish(b, config)
    b.input("position")
    square, shares = b.input(SQUARE, (POOL, width), "f32"), b.input(SHARES, (POOL,), "f32")
    x = b.add(CombineExperts(), shares, square, name="mean")
    x = written(b, LayerNorm(width, EPS), x, "mean.norm", "encoder.ln_post")
    written(b, Linear(width, config.text_width, biased=True), x, ROWS, "encoder.proj")
    b.graph(PROJECTOR, (ROWS,))
    return b.program()


class Processor(SoundProcessor):
    """Windows of one length up to the sound's end; positions begin anew in each."""

    marker, heard_whole = AUDIO, False
    config: Config

    def rows_of(self, count: int) -> int:
        """Return the rows of all windows."""
        return -(-self._frames(count) // STRIDE) // POOL

    def _frames(self, count: int) -> int:
        return min(-(-count // self.rules.hop_length), self.rules.frames)

    def prepare(self, samples: Floats) -> SpokenSound:
        """Return windows of the spectrogram; RequestError for a sound of less than a row."""
        rules, size = self.rules, STRIDE * self.config.n_window
        part = samples[: rules.window]
        whole = -(-(len(part) + 2 * rules.n_fft) // rules.hop_length) * rules.hop_length
        silence = np.zeros(min(whole, rules.window) - len(part), np.float32)
        spectrogram = rules.spectrogram(np.concatenate([part, silence]))
        frames = spectrogram[: self._frames(len(part))]
        parts = [frames[start : start + size] for start in range(0, len(frames), size)]
        windows = tuple(self._window(one) for one in parts if len(one) > STRIDE)
        if not windows:
            what = f"a sound of {len(samples)} samples is too short to be heard"
            hint = f"give more than {STRIDE * rules.hop_length}"
            raise RequestError(what, where="audio", hint=hint)
        return SpokenSound(windows, AUDIO * sum(len(one.squares) for one in windows))

    def _window(self, frames: Floats) -> SoundWindow:
        count = -(-len(frames) // STRIDE)
        squares = np.arange(count // POOL * POOL).reshape(-1, POOL)
        places = sinusoids(count, self.config.hidden_size)
        return SoundWindow(frames, count, squares, {PLACED: places})
