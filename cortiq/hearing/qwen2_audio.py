"""Qwen2-Audio: Whisper's encoder, means of two neighbouring rows, a norm and a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import RequestError
from cortiq.hearing import config as encoders
from cortiq.hearing import whisper
from cortiq.hearing.config import SoundConfig, sound_values
from cortiq.hearing.spoken import SoundProcessor, SoundWindow, SpokenSound
from cortiq.hearing.whisper import HIDDEN, STRIDE, written
from cortiq.ir import Program
from cortiq.ir.encoders import PROJECTOR, ROWS, SHARES, SQUARE
from cortiq.ir.layers import LayerNorm, Linear
from cortiq.ir.ops import CombineExperts
from cortiq.models.names import Names
from cortiq.models.opt import EPS
from cortiq.numerics.contract import Floats

ARCHITECTURES = ("qwen2_audio",)
KEYS, PREFIXES, NAMES = encoders.KEYS, encoders.PREFIXES, Names()
POOL = 2
"""Rows of the encoder that a row of the text is the mean of."""
AUDIO = "<|AUDIO|>"


@dataclass(frozen=True, kw_only=True)
class Config(SoundConfig):
    """Fields of `Qwen2AudioEncoderConfig`."""


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys."""
    return sound_values(whole, token="audio_token_index,audio_token_id")


def build(config: Config, most: int) -> Program:
    """Build encoder and projector."""
    b, _ = whisper.encoder(config, "qwen2_audio", HIDDEN)
    whisper.finish(b, config)
    b.input("position")
    width = config.hidden_size
    square, shares = b.input(SQUARE, (POOL, width), "f32"), b.input(SHARES, (POOL,), "f32")
    x = b.add(CombineExperts(), shares, square, name="mean")
    x = written(b, LayerNorm(width, EPS), x, "mean.norm", "encoder.layer_norm")
    written(b, Linear(width, config.text_width, biased=True), x, ROWS, "projector.linear")
    b.graph(PROJECTOR, (ROWS,))
    return b.program()


class Processor(SoundProcessor):
    """One window, of which only the rows of the sound itself are computed."""

    marker = AUDIO

    def rows_of(self, count: int) -> int:
        """Return the rows of the first window."""
        frames = min(-(-count // self.rules.hop_length), self.most)
        return -(-frames // STRIDE) // POOL

    def prepare(self, samples: Floats) -> SpokenSound:
        """Return the first window; RequestError for a sound of less than a row."""
        frames = min(-(-len(samples) // self.rules.hop_length), self.most)
        count = -(-frames // STRIDE)
        squares = np.arange(count // POOL * POOL).reshape(-1, POOL)
        if not len(squares):
            least = ((POOL - 1) * STRIDE + 1) * self.rules.hop_length
            what = f"a sound of {len(samples)} samples is too short to be heard"
            raise RequestError(what, where="audio", hint=f"give more than {least - 1}")
        window = SoundWindow(self.rules.prepare(samples).frames, count, squares)
        return SpokenSound((window,), AUDIO * len(squares))
