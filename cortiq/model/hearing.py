"""Hearing of a model: sounds of prompts, and the encoder that makes rows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cortiq.engine.prompt_encoded import EncodedPrompt
from cortiq.hearing.decode import sound_of
from cortiq.hearing.encode import SoundEncoder
from cortiq.hearing.features import PreparedSound
from cortiq.hearing.load import LoadedHearing
from cortiq.hearing.speech import SpeechTokens
from cortiq.hearing.whisper import STRIDE
from cortiq.numerics.contract import Floats


@dataclass(frozen=True)
class SoundPrompt:
    """Token ids of a prompt, and the window of sound that its rows hear.

    Attributes
    ----------
    encoded : the sound, as the encoder's rows.
    """

    ids: Sequence[int]
    encoded: EncodedPrompt


class Hearing:
    """The features of a model's sounds, the encoder that makes rows of them, its speech tokens."""

    def __init__(self, loaded: LoadedHearing, encoder: SoundEncoder, speech: SpeechTokens) -> None:
        self.program, self.rules = loaded.program, loaded.rules
        self.encoder, self.speech = encoder, speech

    def samples(self, audio: Any) -> Floats:
        """Return the samples of a sound at the model's rate; RequestError where it has none."""
        return sound_of(audio).at(self.rules.sampling_rate)

    def encoded(self, samples: Floats) -> EncodedPrompt:
        """Return the first window of samples as what rows of a text attend to."""
        return self.of_prepared(self.rules.prepare(samples))

    def of_prepared(self, sound: PreparedSound) -> EncodedPrompt:
        """Return a prepared window as what rows of a text attend to."""
        rows = len(sound.frames) // STRIDE
        return EncodedPrompt(rows, partial(self.encoder.rows, sound), sound.digest)
