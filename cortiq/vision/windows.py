"""Windows of feature maps: the pixels that each pixel of a convolution's output is made of.

A row of a tower may hold a block of a map's pixels, side × side. Pixels are numbered as the rows
hold them: block by block, row by row, and so within a block.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats


class Window(NamedTuple):
    """A convolution's kernel over a map whose padding makes the output's side ⌈side/stride⌉.

    Attributes
    ----------
    kernel, stride : of the convolution; the kernel is not smaller than the stride.
    below, own : sides of the blocks that rows hold, of the map below and of this one.
    """

    kernel: int
    stride: int
    below: int
    own: int

    @property
    def taps(self) -> int:
        """Pixels of a window."""
        return self.kernel**2

    @property
    def centres(self) -> list[int]:
        """Taps of the stride × stride pixels that the output's pixel takes the place of."""
        before = (self.kernel - self.stride) // 2
        edge = range(before, before + self.stride)
        return [row * self.kernel + column for row in edge for column in edge]


def pixel_numbers(side: int, block: int) -> npt.NDArray[np.int64]:
    """Return the number of each pixel of a map: [side, side]."""
    at = np.arange(side)
    row, inner = at // block, at % block
    whole = row[:, None] * (side // block) + row
    return whole * block**2 + inner[:, None] * block + inner


@lru_cache(maxsize=64)
def window_rows(window: Window, side: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the pixels of the windows of each row, and 1 for those inside the map, 0 for others.

    Parameters
    ----------
    side : of the map below, a multiple of the stride.

    Returns
    -------
    int64 and float32 [rows, own² · kernel²]; the pixel of one outside is 0.
    """
    kernel, stride, below, own = window
    out = side // stride
    at = np.arange(out)[:, None] * stride - (kernel - stride) // 2 + np.arange(kernel)
    inside = (at >= 0) & (at < side)
    there = inside[:, None, :, None] & inside[None, :, None, :]
    at = np.where(inside, at, 0)
    found = pixel_numbers(side, below)[at[:, None, :, None], at[None, :, None, :]]
    order = np.argsort(pixel_numbers(out, own).reshape(-1))
    shape = (-1, own**2 * kernel**2)
    pixels = np.where(there, found, 0).reshape(out**2, -1)[order].reshape(shape)
    mask = there.reshape(out**2, -1)[order].astype(F32).reshape(shape)
    for array in (pixels, mask):
        array.flags.writeable = False
    return pixels, mask


def stem_patches(values: Floats, kernel: int, block: int) -> Floats:
    """Return the pixels that each output of a convolution of stride 2 reads, by rows of blocks.

    Parameters
    ----------
    values : float32 [side, side, channels], the side a multiple of 2·block.

    Returns
    -------
    float32 [rows, block², channels·kernel²], by channel, row and column; 0 outside the image.
    """
    side, _, channels = values.shape
    before = (kernel - 2) // 2
    padded = np.pad(values, ((before, kernel - 2 - before),) * 2 + ((0, 0),))
    views = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(0, 1))
    flat = views[::2, ::2].reshape((side // 2) ** 2, -1)
    order = np.argsort(pixel_numbers(side // 2, block).reshape(-1))
    return np.ascontiguousarray(flat[order].reshape(-1, block**2, channels * kernel**2))
