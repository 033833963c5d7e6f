"""Pixels: resizing in integers, normalising in a written order, patches. What a model sees of an
image is part of the definition, so that the same pixels give the same rows everywhere.

Resizing is that of Pillow on 8 bits a channel: a filter with antialiasing, a pass over the columns
and one over the rows, weights in 22 fraction bits, each pass rounded to a grey level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats, snap
from cortiq.numerics.rope import COSINE_TERMS, SINE_TERMS, taylor

Pixels = npt.NDArray[np.uint8]
"""Grey levels [height, width, channels]."""
Doubles = npt.NDArray[np.float64]
FRACTION_BITS = 22
"""Fraction bits of a filter's weights: products of 255 and their sums fit 32 bits."""
CHUNK = 1 << 22
"""Products of a pass that are held at a time."""


def sine_of_half_turns(x: Doubles) -> Doubles:
    """Return sin(π·x) for small x: with q = rint(2x) and r = (x − q/2)·π, the Taylor polynomial of
    sine or cosine that RoPE has, by q mod 4, and its sign.
    """
    quarter = np.rint(2.0 * x)
    r = (x - 0.5 * quarter) * math.pi
    z = r * r
    turn = quarter.astype(np.int64) & 3
    value = np.where(turn & 1, taylor(z, COSINE_TERMS), taylor(z, SINE_TERMS) * r)
    return np.where(turn >= 2, -value, value)


def triangle(x: Doubles) -> Doubles:
    """Return the bilinear filter: 1 − |x| within 1."""
    x = np.abs(x)
    return np.where(x < 1.0, 1.0 - x, 0.0)


def cubic(x: Doubles) -> Doubles:
    """Return the bicubic filter of a = −½ (Keys 1981)."""
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def lanczos(x: Doubles) -> Doubles:
    """Return the Lanczos filter: sinc(x)·sinc(x/3) within 3."""
    inside = (x >= -3.0) & (x < 3.0)
    safe = np.where(inside & (x != 0.0), x, 1.0)
    first = sine_of_half_turns(safe) / (safe * math.pi)
    second = sine_of_half_turns(safe / 3.0) / (safe / 3.0 * math.pi)
    return np.where(inside, np.where(x == 0.0, 1.0, first * second), 0.0)


FILTERS: Mapping[str, tuple[Callable[[Doubles], Doubles], float]] = {
    "bilinear": (triangle, 1.0),
    "bicubic": (cubic, 2.0),
    "lanczos": (lanczos, 3.0),
}
"""Filters by name, each with its support: how far it reaches at a scale of 1."""


@lru_cache(maxsize=64)
def resize_weights(size: int, wanted: int, name: str) -> tuple[npt.NDArray[np.int64], Doubles]:
    """Return of each wanted place the first place that it reads, and its weights.

    With s = size/wanted, f = max(s, 1), place i centres at c = (i + ½)·s and reads the places from
    ⌊c − support·f + ½⌋ to before ⌊c + support·f + ½⌋ that there are; place j weighs
    filter((j − c + ½)·(1/f)), divided by their sum from +0 in ascending order, then times 2²²,
    rounded half away from 0. All of it in float64, in the order written.

    Returns
    -------
    int64 [wanted], and int64 weights [wanted, most], 0 where a place reads fewer.
    """
    filter_, support = FILTERS[name]
    scale = size / wanted
    stretch = max(scale, 1.0)
    reach = support * stretch
    centre = (np.arange(wanted) + 0.5) * scale
    first = np.maximum(np.trunc(centre - reach + 0.5), 0).astype(np.int64)
    last = np.minimum(np.trunc(centre + reach + 0.5), size).astype(np.int64)
    most = int((last - first).max())
    offsets = np.arange(most)
    weights = filter_((offsets + first[:, None] - centre[:, None] + 0.5) * (1.0 / stretch))
    weights = np.where(offsets < (last - first)[:, None], weights, 0.0)
    total = np.zeros(wanted)
    for column in weights.T:
        total = total + column
    weights = np.where(total[:, None] != 0.0, weights / total[:, None], weights)
    scaled = weights * float(1 << FRACTION_BITS)
    return first, np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int64)


def _resized_rows(pixels: Pixels, wanted: int, name: str) -> Pixels:
    """Resize the first axis: Σ weight·level + 2²¹, shifted down by 22 bits, cut to a grey level."""
    size, *rest = pixels.shape
    if size == wanted:
        return pixels
    first, weights = resize_weights(size, wanted, name)
    out = np.empty((wanted, *rest), np.uint8)
    most = weights.shape[1]
    step = max(1, CHUNK // (most * int(np.prod(rest))))
    for start in range(0, wanted, step):
        stop = min(start + step, wanted)
        places = np.minimum(first[start:stop, None] + np.arange(most), size - 1)
        read = pixels[places].reshape(stop - start, most, -1).astype(np.int64)
        sums = (weights[start:stop, :, None] * read).sum(axis=1) + (1 << (FRACTION_BITS - 1))
        levels = np.clip(sums >> FRACTION_BITS, 0, 255).astype(np.uint8)
        out[start:stop] = levels.reshape(stop - start, *rest)
    return out


def rows_come_first(size: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Return whether the rows of an image are resized before its columns, as Pillow 13 does:
    where the height falls, and by more than twice as much as the width.
    """
    falls, narrows = size[0] - wanted[0], size[1] - wanted[1]
    return falls > max(0, 2 * narrows)


def resize(pixels: Pixels, height: int, width: int, name: str) -> Pixels:
    """Return an image in another size, by a filter of `FILTERS`, in two passes.

    A pass that keeps the size changes nothing.
    """
    rows_first = rows_come_first(pixels.shape[:2], (height, width))
    if rows_first:
        pixels = _resized_rows(pixels, height, name)
    turned = _resized_rows(np.ascontiguousarray(pixels.swapaxes(0, 1)), width, name)
    pixels = np.ascontiguousarray(turned.swapaxes(0, 1))
    return pixels if rows_first else _resized_rows(pixels, height, name)


def cubic_taps(count: int, side: int) -> tuple[npt.NDArray[np.int32], Doubles]:
    """Return the four places of `side` around each of `count` along an edge, and their weights.

    Middles lie over middles: place i is at s = (i + ½)·side/count − ½. The places ⌊s⌋ − 1 to
    ⌊s⌋ + 2, those past the edges being the edge's, weigh Keys' filter of a = −¾ at their distance
    d: ((a + 2)·d − (a + 3))·d·d + 1 up to 1, then ((a·d − 5a)·d + 8a)·d − 4a. All of it is float64,
    in the order written.

    Returns
    -------
    int32 and float64, [count, 4].
    """
    at = (np.arange(count) + 0.5) * side / count - 0.5
    first = np.floor(at)
    raw = first.astype(np.int32)[:, None] + np.arange(-1, 3, dtype=np.int32)
    a, d = -0.75, np.abs(at[:, None] - raw)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.clip(raw, 0, side - 1), np.where(d <= 1, near, far)


def interpolate(values: Floats, height: int, width: int) -> Floats:
    """Return values [rows, columns, channels] in another size, of four places along each edge.

    Lines come first: of each, Σ weight·value from +0, in the order of `cubic_taps`, in float64;
    then columns of these, and snap(RN) of the sums. Nothing is averaged where the size falls.
    """
    found = values.astype(np.float64)
    for axis, count in ((0, height), (1, width)):
        places, weights = cubic_taps(count, values.shape[axis])
        shape = (-1, 1, 1) if axis == 0 else (1, -1, 1)
        total = np.zeros([*found.shape[:axis], count, *found.shape[axis + 1 :]])
        for tap in range(places.shape[1]):
            total = total + weights[:, tap].reshape(shape) * found.take(places[:, tap], axis)
        found = total
    return snap(found.astype(F32))


def normalise(
    pixels: Pixels, factor: float, mean: Sequence[float], deviation: Sequence[float]
) -> Floats:
    """Return values of grey levels p: snap(RN((p·factor − mean)/deviation)), by channel.

    Product, difference and quotient are float64, each rounded once, in this order.
    """
    levels = np.arange(256, dtype=np.float64) * factor
    columns = [(levels - m) / d for m, d in zip(mean, deviation, strict=True)]
    table = snap(np.stack(columns, axis=1).astype(F32))
    return np.stack([table[pixels[..., c], c] for c in range(pixels.shape[2])], axis=-1)


def patches(values: Floats, size: int, *, by_pixel: bool = False) -> Floats:
    """Cut values [height, width, channels] into patches, row by row: [patches, channels·size·size].

    A patch lists its values by channel, then row, then column: a row of a convolution's kernel. By
    pixel it lists them by row, column, channel.
    """
    height, width, channels = values.shape
    down, across = height // size, width // size
    cut = values[: down * size, : across * size]
    order = (0, 2, 1, 3, 4) if by_pixel else (0, 2, 4, 1, 3)
    parts = cut.reshape(down, size, across, size, channels).transpose(order)
    return np.ascontiguousarray(parts.reshape(down * across, channels * size * size))


def grouped(height: int, width: int, side: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the patches of each square of side × side: [squares, side·side].

    Patches of a grid are numbered row by row, so are squares, and the patches of a square.
    """
    numbers = np.arange(height * width).reshape(height // side, side, width // side, side)
    return numbers.transpose(0, 2, 1, 3).reshape(-1, side * side)
