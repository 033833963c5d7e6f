"""Weights as integers under float scales: the values that a layout's bytes stand for.

`UnpackedWeight` is a layout unpacked but not yet multiplied out (small codes, integer sub-scales);
backends repack from it. `Codes` is the form in which `matmul` is defined.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.numerics.contract import F32, Floats, Ints

Bytes = npt.NDArray[np.uint8]


class UnpackedWeight(NamedTuple):
    """An unpacked weight [N, K]; `block` elements along K share one float scale.

    codes : int8, int16 or int32 [N, K]; scale : float32 [N, ⌈K/block⌉].
    minimum : float32 [N, ⌈K/block⌉] or None; added with the integer factor `offsets`.
    sub_scales, offsets : integers [N, K/sub] or None (1 for each sub-block of `sub` elements).
    """

    codes: npt.NDArray[np.signedinteger]
    scale: Floats
    block: int
    minimum: Floats | None = None
    sub_scales: npt.NDArray[np.signedinteger] | None = None
    offsets: npt.NDArray[np.signedinteger] | None = None
    sub: int = 0


class Codes(NamedTuple):
    """A weight [N, K] as the matmul takes it: element = code·scale [+ offset·minimum].

    codes : int16 [N, K], sub-scales multiplied in, |code| ≤ 32639; of E4M3 int32, ≤ 229376.
    block : elements along K under one scale; the last block of a row may be shorter.
    scale : float32 [N, ⌈K/block⌉], canonical.
    offsets : int32 [N, K/sub] or None; the integer that multiplies `minimum` in each sub-block.
    sub : elements of a sub-block, 0 without offsets.
    minimum : float32 [N, ⌈K/block⌉], canonical, or None.
    """

    codes: npt.NDArray[np.signedinteger]
    block: int
    scale: Floats
    offsets: Ints | None = None
    sub: int = 0
    minimum: Floats | None = None

    def rows(self, start: int, stop: int) -> Codes:
        """Return output rows start…stop−1, as views: a split along N, or one expert of a stack."""
        cut = slice(start, stop)
        offsets = None if self.offsets is None else self.offsets[cut]
        minimum = None if self.minimum is None else self.minimum[cut]
        return Codes(self.codes[cut], self.block, self.scale[cut], offsets, self.sub, minimum)

    def columns(self, start: int, stop: int) -> Codes:
        """Return columns start…stop−1, as views: a split along K.

        A weight of one block per row can be cut anywhere; others between blocks only.
        """
        width = stop - start
        if self.scale.shape[1] == 1:
            return self._replace(codes=self.codes[:, start:stop], block=width)
        whole_end = stop % self.block == 0 or stop == self.codes.shape[1]
        if start % self.block or not whole_end:
            raise ValueError(f"columns {start}:{stop} cut a block of {self.block}")
        blocks = slice(start // self.block, -(-stop // self.block))
        offsets, minimum = self.offsets, self.minimum
        return Codes(
            self.codes[:, start:stop],
            self.block,
            self.scale[:, blocks],
            None if offsets is None else offsets[:, start // self.sub : stop // self.sub],
            self.sub,
            None if minimum is None else minimum[:, blocks],
        )


def fold(fields: UnpackedWeight) -> Codes:
    """Multiply the integer sub-scales into the codes: exact; int16 holds those of every layout with
    codes of 8 bits or less.
    """
    wide = fields.codes.dtype.itemsize > 2
    codes: npt.NDArray[np.signedinteger] = fields.codes
    codes = codes if wide else codes.astype(np.int16, copy=False)
    if fields.sub_scales is not None:
        per_element = np.repeat(fields.sub_scales.astype(np.int16), fields.sub, axis=-1)
        codes = codes * per_element
    if fields.minimum is None:
        return Codes(codes, fields.block, fields.scale)
    sub = fields.sub or fields.block
    if fields.offsets is None:
        ones = np.broadcast_to(np.int32(1), (codes.shape[0], codes.shape[1] // sub))
        return Codes(codes, fields.block, fields.scale, ones, sub, fields.minimum)
    offsets = fields.offsets.astype(np.int32)
    return Codes(codes, fields.block, fields.scale, offsets, sub, fields.minimum)


def widen_half(half: npt.NDArray[np.uint32]) -> Floats:
    """Widen bits of IEEE binary16 values to float32, by integers, exactly.

    Subnormals are mantissa·2⁻²⁴; infinities and NaNs keep their meaning. A device's f16 type is
    never used: some flush subnormals, which most scales of real Q6_K files are.
    """
    sign, exponent, mantissa = (half >> 15) << 31, (half >> 10) & 31, half & 1023
    widened = np.where(exponent == 31, np.uint32(255), exponent + np.uint32(112))
    normal = ((widened << 23) | (mantissa << 13)).astype(np.uint32)
    subnormal = (mantissa.astype(F32) * F32(2.0**-24)).view(np.uint32)
    return (np.where(exponent == 0, subnormal, normal) | sign).astype(np.uint32).view(F32)


@lru_cache(maxsize=1)
def _every_half() -> Floats:
    return widen_half(np.arange(1 << 16, dtype=np.uint32))


def half_to_float(raw: Bytes) -> Floats:
    """Convert IEEE binary16 (little-endian byte pairs on the last axis) to float32: `widen_half`,
    read from a table of all 65,536 values, since every product of a file's weights begins with it.
    """
    return _every_half().take(raw.view("<u2"))


def contiguous_runs(runs: Bytes) -> Bytes:
    """Copy without the gaps between blocks; each run of the last axis is moved as one item, since
    NumPy is slow at inner loops of a few bytes.
    """
    return np.ascontiguousarray(runs.view(f"V{runs.shape[-1]}")).view(np.uint8)


def bfloat_to_float(raw: Bytes) -> Floats:
    """Convert bfloat16 (little-endian byte pairs) to float32: the upper half, exactly."""
    bits = (raw[..., 0::2].astype(np.uint32) << 16) | (raw[..., 1::2].astype(np.uint32) << 24)
    return bits.view(F32)
