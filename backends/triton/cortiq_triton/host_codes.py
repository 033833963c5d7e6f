"""Codes of weights as they lie on the device, made on the host."""

from __future__ import annotations

import numpy as np
import torch

from cortiq.numerics.groupquants import bytes_of_wide
from cortiq.numerics.layouts import W16, Weight
from cortiq.numerics.unpacked_weights import UnpackedWeight
from cortiq_triton import packing

BYTES, NIBBLES, PLANES, FLOATS, WIDE = range(5)
"""Layouts of codes: int8; as `packing` says; two int8 planes (w16); none, a `FloatMatrix`; as bytes
that stand for integers of more than 8 bits.
"""
WIDE_CODES = {"e4m3b32": 1, "nf4b32": 2, "fp4b32": 3}
"""Kinds of such bytes by layout: E4M3, or places of a table (`wide_codes`)."""
OFFSET_CODES = {
    "Q4_0": 8, "Q4_1": 0, "Q4_K": 0, "Q2_K": 0, "Q3_K": 4, "Q5_0": 16, "Q5_1": 0, "Q5_K": 0,
    "Q6_K": 32, "i4b32": 8, "i4b32m": 0,
}  # fmt: skip
"""Layouts whose codes are nibbles, perhaps with bits above them, once this is added."""
BITS_ABOVE = {"Q5_0": 1, "Q5_1": 1, "Q5_K": 1, "Q6_K": 2}
"""Bits above a nibble."""
E2M1_CODES = {"e2m1b16", "MXFP4"}
"""Layouts whose nibbles are places of E2M1's table (`e2m1`)."""
E2M1_PLACES = np.array(
    [15, 0, 0, 0, 14, 0, 13, 0, 12, 11, 10, 9, 0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7], np.uint8
)
"""Nibbles of the integers from −12 on."""


def codes_of_weight(
    weight: Weight, fields: UnpackedWeight, padded: int
) -> tuple[int, int, torch.Tensor, torch.Tensor | None]:
    """Kind, bias, codes, and the bits above nibbles."""
    rows, columns = weight.shape
    if weight.layout is W16:
        planes = np.zeros((2, rows, padded), np.int8)
        planes[0, :, :columns], planes[1, :, :columns] = weight.parts["hi"], weight.parts["lo"]
        return PLANES, 0, torch.from_numpy(planes), None
    if weight.layout.name in WIDE_CODES:
        given = bytes_of_wide(weight.layout.name, filled(fields.codes, padded))
        return WIDE, 0, torch.from_numpy(given.view(np.int8)), None
    codes = filled(fields.codes.astype(np.int8), padded)
    if weight.layout.name in E2M1_CODES:
        return NIBBLES, 0, torch.from_numpy(packing.neighbours_of(E2M1_PLACES[codes + 12])), None
    bias = OFFSET_CODES.get(weight.layout.name)
    if bias is None:
        return BYTES, 0, torch.from_numpy(codes), None
    lifted, bits = (codes + np.int8(bias)).view(np.uint8), None
    above = BITS_ABOVE.get(weight.layout.name, 0)
    if above:
        bits = torch.from_numpy(packing.bits_above(lifted, above))
    return NIBBLES, bias, torch.from_numpy(packing.nibbles_of(lifted)), bits


def filled(array: np.ndarray, width: int) -> np.ndarray:
    """Columns of zeros up to a width."""
    out = np.zeros((array.shape[0], width), array.dtype)
    out[:, : array.shape[1]] = array
    return out


def integers(array: np.ndarray | None, width: int) -> torch.Tensor | None:
    """Sub-scales or offsets as int8."""
    if array is None:
        return None
    return torch.from_numpy(filled(array.astype(np.int8), width))
