"""Spectrograms: a Fourier transform, mel filters and logarithms in float64, each step in a written
order. What a model hears is part of the definition, so that the same samples give the same rows
everywhere.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.doubles import LN10, Doubles, exp64, log64
from cortiq.numerics.pixels import sine_of_half_turns

FRAMES = 256
"""Frames that are transformed at a time."""
FLOOR, RANGE = 1e-10, 8.0
"""Least energy, and how many powers of ten below the loudest one a value lies at most."""
LINEAR_MELS, LINEAR_HERTZ, LOG_STEP = 15.0, 1000.0, 1.8562979903656263 / 27.0
"""Slaney's scale: 15 mels of 200/3 Hz up to 1000 Hz, then 27 mels for each factor of 6.4."""


@lru_cache(maxsize=64)
def turns(size: int) -> tuple[Doubles, Doubles]:
    """Return cos(2πj/size) and −sin(2πj/size) for 0 ≤ j < size."""
    j = np.arange(size)
    quarter = sine_of_half_turns((2 * j) / size)
    return sine_of_half_turns(((4 * j + size) % (4 * size)) / (2 * size)), -quarter


def fourier(re: Doubles, im: Doubles) -> tuple[Doubles, Doubles]:
    """Return the discrete Fourier transform along the second axis of [batch, size, frames].

    With p the least prime factor of the size n, the places r, r + p, r + 2p, … are transformed for
    each r < p. Place k of the result is the sum of (place k mod n/p of the r-th)·e^(−2πi·r·k/n) in
    ascending order of r, which begins with r = 0 as it is. Real part of a product: a·c − b·d,
    imaginary part: a·d + b·c, each product, difference and sum rounded.
    """
    batch, size, frames = re.shape
    if size == 1:
        return re, im
    prime = next(p for p in range(2, size + 1) if size % p == 0)
    part = size // prime

    def parted(x: Doubles) -> Doubles:
        return x.reshape(batch, part, prime, frames).swapaxes(1, 2).reshape(-1, part, frames)

    inner = [x.reshape(batch, prime, part, frames) for x in fourier(parted(re), parted(im))]
    cos, sin = turns(size)
    out = [np.tile(x[:, 0], (1, prime, 1)) for x in inner]
    for r in range(1, prime):
        at = np.arange(size) * r % size
        c, d = cos[at, None], sin[at, None]
        a, b = (np.tile(x[:, r], (1, prime, 1)) for x in inner)
        out[0] = out[0] + (a * c - b * d)
        out[1] = out[1] + (a * d + b * c)
    return out[0], out[1]


def hertz(mels: Doubles) -> Doubles:
    """Return the frequencies of places on Slaney's scale."""
    curved = LINEAR_HERTZ * exp64(LOG_STEP * np.maximum(mels - LINEAR_MELS, 0.0))
    return np.where(mels < LINEAR_MELS, 200.0 * mels / 3.0, curved)


@lru_cache(maxsize=8)
def mel_filters(bands: int, size: int, rate: int) -> Doubles:
    """Return the triangular filters of the bins of a transform: float64 [size/2 + 1, bands].

    Corners are equally far apart on the scale, from 0 to half the rate: corner i at
    i·(top/(bands + 1)). At f, filter b with the corners l, m, h weighs
    max(0, min((h − f)/(h − m), (f − l)/(m − l)))·(2/(h − l)).
    """
    half = rate / 2.0
    above = np.array([max(half / LINEAR_HERTZ, 1.0)])
    top = LINEAR_MELS + float(log64(above)[0]) / LOG_STEP if half >= LINEAR_HERTZ else 0.015 * half
    corners = hertz(np.arange(bands + 2, dtype=np.float64) * (top / (bands + 1)))
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    f = (np.arange(size // 2 + 1) * (rate / size))[:, None]
    slopes = np.minimum((high - f) / (high - middle), (f - low) / (middle - low))
    return np.maximum(0.0, slopes) * (2.0 / (high - low))


def energies(samples: Doubles, size: int, hop: int, filters: Doubles) -> Doubles:
    """Return the energies in each band of frames every `hop` samples: float64 [bands, frames].

    Samples are mirrored at both ends (the end itself once), half a frame far. A frame is
    multiplied by sin²(πj/size), transformed, and re·re + im·im of each bin added to the bands in
    ascending order of bins, from +0, times their weights. There are ⌊n/hop⌋ frames.
    """
    half, count = size // 2, len(samples) // hop
    padded = np.pad(samples, half, mode="reflect")
    root = sine_of_half_turns(np.arange(size) / size)
    window = (root * root)[:, None]
    found = np.zeros((filters.shape[1], count))
    for start in range(0, count, FRAMES):
        first = np.arange(start, min(start + FRAMES, count)) * hop
        frame = padded[first + np.arange(size)[:, None]] * window
        re, im = (x[0] for x in fourier(frame[None], np.zeros_like(frame)[None]))
        part = found[:, start : start + FRAMES]
        for k, weights in enumerate(filters):
            bands = np.flatnonzero(weights)
            part[bands] += weights[bands, None] * (re[k] * re[k] + im[k] * im[k])
    return found


def log_mel(
    samples: npt.NDArray[np.floating], size: int, hop: int, bands: int, rate: int
) -> Floats:
    """Return a logarithmic mel spectrogram as Whisper has it: float32 [frames, bands].

    With y = log10(max(energy, 10⁻¹⁰)) and m the largest y of all: snap(RN((max(y, m − 8) + 4)/4)).
    """
    filters = mel_filters(bands, size, rate)
    found = energies(np.asarray(samples, np.float64), size, hop, filters)
    y = log64(np.maximum(found, FLOOR)) / LN10
    y = np.maximum(y, y.max(initial=-np.inf) - RANGE)
    return snap(np.ascontiguousarray(((y + 4.0) / 4.0).T).astype(F32))
