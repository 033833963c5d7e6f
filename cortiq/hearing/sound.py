"""Sound: samples of one channel, within limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortiq.errors import RequestError
from cortiq.numerics.contract import Floats
from cortiq.numerics.samples import resample

MAX_BYTES = 256 << 20
MAX_FRAMES = 1 << 26
MAX_CHANNELS = 32
RATES = range(1000, 400_000)
"""A file of sound, and what it is decoded to, at most: 256 MiB of samples."""
LOUDEST = 2.0**20
"""Samples are smaller than this; full scale is 1."""


@dataclass(frozen=True, eq=False)
class Sound:
    """Samples of one channel, float32, at a rate in hertz."""

    samples: Floats
    rate: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.samples) / self.rate

    def at(self, rate: int) -> Floats:
        """Return the samples at another rate, each rounded to float32.

        Raises
        ------
        RequestError : there are more than `MAX_FRAMES` at that rate.
        """
        count = -(-len(self.samples) * rate // self.rate)
        if count > MAX_FRAMES:
            what = f"the sound lasts {self.seconds:.0f} seconds: at most {MAX_FRAMES // rate}"
            raise RequestError(what, where="audio", hint="cut it into several")
        return resample(self.samples, self.rate, rate).astype(np.float32)


def check_extent(frames: int, channels: int, rate: int) -> None:
    """Refuse more than the limits, before memory is taken."""
    what = ""
    if not 0 < channels <= MAX_CHANNELS:
        what = f"a sound of {channels} channels"
    elif rate not in RATES:
        what = f"a sound of {rate} samples a second"
    elif frames > MAX_FRAMES:
        what = f"a sound of {frames} samples: at most {MAX_FRAMES}"
    if what:
        hint = f"at most {MAX_CHANNELS} channels, {RATES.start} to {RATES.stop - 1} hertz"
        raise RequestError(what, where="audio", hint=hint)


def checked(sound: Sound) -> Sound:
    """Return a sound whose samples are finite and not absurd; RequestError otherwise."""
    if len(sound.samples) == 0:
        raise RequestError("the sound has no samples", where="audio", hint="give a longer one")
    if not (np.abs(sound.samples) < LOUDEST).all():
        what = f"a sample is not finite, or {LOUDEST:g} times full scale"
        raise RequestError(what, where="audio", hint="floats lie between -1 and 1")
    return sound
