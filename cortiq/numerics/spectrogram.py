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
EMPHASIS = 0.97
"""Part of the sample before that pre-emphasis takes off."""
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


@lru_cache(maxsize=8)
def htk_filters(bands: int, size: int, rate: int, low: float, high: float) -> Doubles:
    """Return triangular filters on HTK's scale: float64 [size/2 + 1, bands].

    With m(f) = ln(1 + f/700), corner i is at
    700·(e^(m(low) + i·((m(high) − m(low))/(bands + 1))) − 1).
    At f, filter b with the corners l, m, h weighs max(0, min((h − f)/(h − m), (f − l)/(m − l))).
    """
    ends = log64(1.0 + np.array([low, high]) / 700.0)
    step = (ends[1] - ends[0]) / (bands + 1)
    corners = 700.0 * (exp64(ends[0] + np.arange(bands + 2) * step) - 1.0)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    f = (np.arange(size // 2 + 1) * (rate / size))[:, None]
    return np.maximum(0.0, np.minimum((right - f) / (right - middle), (f - left) / (middle - left)))


@lru_cache(maxsize=8)
def kaldi_filters(bands: int, size: int, rate: int, low: float, high: float) -> Doubles:
    """Return filters that are triangles on the scale of mels: float64 [size/2 + 1, bands].

    With m(f) = ln(1 + f/700), corner i is at m(low) + i·((m(high) − m(low))/(bands + 1)). At f,
    filter b with the corners l, c, h weighs max(0, min((h − m(f))/(h − c), (m(f) − l)/(c − l))).
    """
    ends = log64(1.0 + np.array([low, high]) / 700.0)
    corners = ends[0] + np.arange(bands + 2) * ((ends[1] - ends[0]) / (bands + 1))
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    f = log64(np.asarray(1.0 + np.arange(size // 2 + 1) * (rate / size) / 700.0, np.float64))[
        :, None
    ]
    return np.maximum(0.0, np.minimum((right - f) / (right - middle), (f - left) / (middle - left)))


def energies(samples: Doubles, size: int, hop: int, filters: Doubles) -> Doubles:
    """Return the energies in each band of frames every `hop` samples: float64 [bands, frames].

    Samples are mirrored at both ends (the end itself once), half a frame far. A frame is
    multiplied by sin²(πj/size), transformed, and re·re + im·im of each bin added to the bands in
    ascending order of bins, from +0, times their weights. There are ⌊n/hop⌋ frames.
    """
    padded = np.pad(samples, size // 2, mode="reflect")
    return _banded(padded, len(samples) // hop, (size, size, hop), filters, root=False)


def _banded(
    samples: Doubles, count: int, sizes: tuple[int, int, int], filters: Doubles, root: bool,
    emphasis: float = 0.0, hamming: bool = False,
) -> Doubles:  # fmt: skip
    """Return bands of frames that begin every so many samples: float64 [bands, count].

    Parameters
    ----------
    sizes : of a frame, of its transform (the rest zeros), and the step. root : magnitudes, the
        roots of the energies, are added. emphasis : part of the sample before, in a frame, that is
        taken off each; of the first one, of itself.
        hamming : the window is 0.08 + 0.92·sin²(πj/(length − 1)), not sin²(πj/length).
    """
    length, size, hop = sizes
    sine = sine_of_half_turns(np.arange(length) / (length - hamming))
    window, found = (sine * sine)[:, None], np.zeros((filters.shape[1], count))
    window = 0.08 + 0.92 * window if hamming else window
    for start in range(0, count, FRAMES):
        first = np.arange(start, min(start + FRAMES, count)) * hop
        frame = samples[first + np.arange(length)[:, None]]
        if emphasis:
            after = frame[1:] - emphasis * frame[:-1]
            frame = np.concatenate([frame[:1] * (1.0 - emphasis), after])
        frame = frame * window
        frame = np.pad(frame, ((0, size - length), (0, 0)))
        re, im = (x[0] for x in fourier(frame[None], np.zeros_like(frame)[None]))
        part = found[:, start : start + FRAMES]
        for k, weights in enumerate(filters):
            bands, energy = np.flatnonzero(weights), re[k] * re[k] + im[k] * im[k]
            part[bands] += weights[bands, None] * (np.sqrt(energy) if root else energy)
    return found


def heard_frames(count: int, length: int, hop: int) -> int:
    """Return the frames of so many samples that lie within them, half a frame of zeros before."""
    return max(0, (count - length + length // 2 - 1) // hop + 1)


def log_magnitudes(
    samples: npt.NDArray[np.floating],
    sizes: tuple[int, int, int],
    filters: Doubles,
    floor: float,
) -> Floats:
    """Return a logarithmic mel spectrogram as Gemma has it: float32 [frames, bands].

    Half a frame of zeros lies before the samples. A frame, all of whose samples and one more are
    there, is multiplied by sin²(πj/length), filled up with zeros and transformed; the roots of
    re·re + im·im are added to the bands as energies are. Values: snap(RN(ln(band + floor))).

    Parameters
    ----------
    sizes : of a frame, of its transform, and the step.
    """
    length, _, hop = sizes
    count = heard_frames(len(samples), length, hop)
    padded = np.pad(np.asarray(samples, np.float64), (length // 2, 0))
    found = _banded(padded, count, sizes, filters, root=True)
    return snap(np.ascontiguousarray(log64(found + floor).T).astype(F32))


def emphasised_log_magnitudes(
    samples: npt.NDArray[np.floating],
    count: int,
    sizes: tuple[int, int, int],
    filters: Doubles,
    floor: float,
) -> Floats:
    """Return a logarithmic mel spectrogram as Gemma 3n has it: float32 [count, bands].

    Frame i begins at the sample i·step; before it is multiplied as those of `log_magnitudes` are,
    each of its samples becomes x[j] − 0.97·x[j − 1], the first one x[0]·(1 − 0.97), every operation
    rounded. Values: snap(RN(ln(max(band, floor)))).
    """
    found = _banded(np.asarray(samples, np.float64), count, sizes, filters, True, EMPHASIS)
    return snap(np.ascontiguousarray(log64(np.maximum(found, floor)).T).astype(F32))


def hamming_log_energies(
    samples: npt.NDArray[np.floating], sizes: tuple[int, int, int], filters: Doubles
) -> Floats:
    """Return a logarithmic mel spectrogram as Phi-4 multimodal has it: float32 [frames, bands].

    Samples are multiplied by 2¹⁵. Frames lie within them, begin every so many, and are
    pre-emphasised as those of `emphasised_log_magnitudes` are, multiplied by
    0.08 + 0.92·sin²(πj/(length − 1)), filled up with zeros and transformed; re·re + im·im of each
    bin is added to the bands as energies are. Values: snap(RN(ln(max(band, 1)))).

    Parameters
    ----------
    sizes : of a frame, of its transform, and the step.
    """
    count = max(0, (len(samples) - sizes[0]) // sizes[2] + 1)
    loud = np.asarray(samples, np.float64) * 2.0**15
    found = _banded(loud, count, sizes, filters, False, EMPHASIS, hamming=True)
    return snap(np.ascontiguousarray(log64(np.maximum(found, 1.0)).T).astype(F32))


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
