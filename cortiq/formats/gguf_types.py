"""Tensor types of GGUF files by number, and numbers that two publishers use for different types.

Type 40 is NVFP4 in ggml, and signs under a scale for 32 elements in PrismML's fork; 41 is Q1_0 in
both, and a type of three bits in another fork. What a tensor is shows in its span, the bytes from
its offset to the next tensor's: the size of one type, filled up to the alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path

from cortiq.errors import UnsupportedError
from cortiq.formats.mapped import TensorInfo

GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""Type number in the file -> (name, elements of a block, bytes of a block)."""

INTEGER_TYPES: dict[int, tuple[str, int, int]] = {26: ("I32", 1, 4), 27: ("I64", 1, 8)}
"""Types of indices, as `GGML_TYPES`; no weight has them."""

UNSUPPORTED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    28: "F64",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
}
"""Types that have a name and no layout here; only error messages use it."""

OTHERS: dict[str, tuple[tuple[str, int, int], ...]] = {
    "NVFP4": (("NVFP4", 64, 36), ("Q1_0_32", 32, 6)),
    "Q1_0": (("Q1_0", 128, 18),),
}
"""What a tensor may be whose number stands for this type: name, elements and bytes of a block."""


def told_apart(
    tensors: Sequence[TensorInfo], end: int, alignment: int, path: Path
) -> list[TensorInfo]:
    """Return the tensors, those of `OTHERS` with the type whose size their span is.

    Parameters
    ----------
    tensors : with offsets in the file. end : its size.

    Raises
    ------
    UnsupportedError : a span is of no size that a type has which its number may stand for.
    """
    found = {tensor.name: tensor for tensor in tensors}
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    limits = [(before, after.offset) for before, after in pairwise(ordered)]
    for tensor, stop in [*limits, *((last, end) for last in ordered[-1:])]:
        if tensor.type in OTHERS:
            span = stop - tensor.offset
            cut_off = stop == end and span < tensor.nbytes
            resized = _resized(tensor, span, alignment)
            if resized is None and not cut_off:
                names = " or ".join(name for name, _, _ in OTHERS[tensor.type])
                message = f"tensor {tensor.name!r} takes {span} bytes, which is no {names}"
                hint = "its type's number stands for a type of another program's, which is not read"
                raise UnsupportedError(message, where=str(path), hint=hint)
            found[tensor.name] = resized or tensor
    return [found[tensor.name] for tensor in tensors]


def _resized(tensor: TensorInfo, span: int, alignment: int) -> TensorInfo | None:
    """Return the tensor with the type whose size its span is, or None."""
    columns, rows = tensor.shape[-1], prod(tensor.shape[:-1])
    for name, elements, block in OTHERS[tensor.type]:
        row_bytes = columns // elements * block
        nbytes = row_bytes * rows
        if columns % elements == 0 and nbytes <= span < nbytes + alignment:
            return replace(tensor, type=name, nbytes=nbytes, row_bytes=row_bytes)
    return None
