"""Ultravox: Whisper's encoder, neighbouring rows side by side, norms around a gated product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortiq.errors import FormatError, UnsupportedError
from cortiq.hearing import config as encoders
from cortiq.hearing import whisper
from cortiq.hearing.config import SOUND, SoundConfig, sound_values
from cortiq.hearing.spoken import SoundProcessor, SoundWindow, SpokenSound
from cortiq.hearing.whisper import HIDDEN, STRIDE, written
from cortiq.ir import Builder, Program, Value
from cortiq.ir.encoders import PROJECTOR, ROWS, SQUARE
from cortiq.ir.layers import LayerNorm, Linear, RMSNorm
from cortiq.ir.ops import Activation, Multiply, Slice
from cortiq.models import whisper as decoders
from cortiq.models.config import Keys
from cortiq.models.names import Names
from cortiq.models.opt import EPS
from cortiq.models.parts import activation
from cortiq.numerics.contract import Floats

ARCHITECTURES = ("ultravox",)
PREFIXES, NAMES = encoders.PREFIXES, Names()
AUDIO = "<|audio|>"
GATED, NORM_EPS = "swiglu", 1e-6
DECODER = frozenset({
    "decoder_attention_heads", "decoder_ffn_dim", "decoder_layers", "decoder_start_token_id",
    "max_target_positions",
})  # fmt: skip
"""Keys of Whisper's configuration for the decoder that there is none of."""
KEYS = Keys(
    aliases=encoders.KEYS.aliases,
    harmless=encoders.KEYS.harmless | decoders.KEYS.harmless | DECODER,
    only={**decoders.KEYS.only, "audio_latency_block_size": None},
)


@dataclass(frozen=True, kw_only=True)
class Config(SoundConfig):
    """Fields of Whisper's encoder, and of the projector.

    Attributes
    ----------
    stack_factor : rows of the encoder that a row of the text is made of.
    projector_width : of what the first matrix makes; half of it gates the other.
    projector_ln_mid : the second norm is before the second matrix, not after it.
    """

    audio_token: int | None = None
    stack_factor: int = 8
    projector_width: int = 4096
    projector_act: str = GATED
    projector_ln_mid: bool = False


def values(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration's keys.

    Raises
    ------
    UnsupportedError : the encoder is in a folder of its own.
    """
    if not whole.get(SOUND) and (elsewhere := whole.get("audio_model_id")):
        what = f"has no {SOUND}: it is that of {elsewhere!r}, which is not in the folder"
        raise UnsupportedError(what, where="config.json", hint="take a folder saved with both")
    kept = "stack_factor", "projector_act", "projector_ln_mid", "audio_latency_block_size"
    found = sound_values(whole, *kept, token="")
    width = whole.get("hidden_size")
    return found | ({"projector_width": width} if width else {})


def build(config: Config, most: int) -> Program:
    """Build encoder and projector."""
    stacked, half = config.hidden_size * config.stack_factor, config.projector_act == GATED
    if config.stack_factor < 1 or config.projector_width % (1 + half):
        what = f"rows of {config.stack_factor} and {config.projector_width} values"
        raise FormatError(what, where="config")
    b, x = whisper.encoder(config, "ultravox")
    written(b, LayerNorm(config.hidden_size, EPS), x, HIDDEN, "encoder.layer_norm")
    whisper.finish(b, config)
    b.input("position")
    y = _normed(b, b.input(SQUARE, (stacked,), "f32"), "stack.norm", "ln_pre")
    y = written(b, Linear(stacked, config.projector_width), y, "up", "projector.linear_1")
    y = _gated(b, y) if half else b.add(Activation(activation(config.projector_act)), y, name="on")
    y = _normed(b, y, "up.norm", "ln_mid") if config.projector_ln_mid else y
    last = Linear(y.type.shape[0], config.text_width)
    out = ROWS if config.projector_ln_mid else "down"
    y = written(b, last, y, out, "projector.linear_2")
    if not config.projector_ln_mid:
        _normed(b, y, ROWS, "ln_post")
    b.graph(PROJECTOR, (ROWS,))
    return b.program()


def _normed(b: Builder, x: Value, name: str, tensor: str) -> Value:
    return written(b, RMSNorm(x.type.shape[0], NORM_EPS), x, name, f"projector.{tensor}")


def _gated(b: Builder, x: Value) -> Value:
    """Write the first half of a row times SiLU of the second."""
    half = x.type.shape[0] // 2
    up, gate = (b.add(Slice(n * half, (n + 1) * half), x, name=f"half.{n}") for n in range(2))
    gate = b.add(Activation("silu"), gate, name="gate")
    return b.add(Multiply(), gate, up, name="gated")


class Processor(SoundProcessor):
    """Windows up to the sound's end, each of its own length; the last row is filled up with zeros.

    The marker is no token, and the rows have none of their own.
    """

    marker, between = AUDIO, ""
    config: Config

    def rows_of(self, count: int) -> int:
        """Return the rows of all windows."""
        whole, rest = divmod(self._frames(count), self.most)
        return whole * self._rows(self.most) + self._rows(rest)

    def _frames(self, count: int) -> int:
        return max(2, -(-count // self.rules.hop_length))

    def _rows(self, frames: int) -> int:
        return -(-frames // (STRIDE * self.config.stack_factor))

    def prepare(self, samples: Floats) -> SpokenSound:
        """Return windows of the spectrogram of all samples, filled up to a whole frame."""
        count = self._frames(len(samples)) * self.rules.hop_length
        frames = self.rules.spectrogram(np.pad(samples, (0, count - len(samples))))
        parts = [frames[start : start + self.most] for start in range(0, len(frames), self.most)]
        windows = tuple(self._window(part) for part in parts)
        return SpokenSound(windows, AUDIO * sum(len(one.squares) for one in windows))

    def _window(self, frames: Floats) -> SoundWindow:
        count = -(-len(frames) // STRIDE)
        size = self._rows(len(frames)) * self.config.stack_factor
        squares = np.minimum(np.arange(size), count).reshape(-1, self.config.stack_factor)
        return SoundWindow(frames, count, squares)
