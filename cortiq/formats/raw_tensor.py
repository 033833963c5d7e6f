"""A tensor in a file's own codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cortiq.errors import FormatError

INTEGERS: Mapping[str, str] = {"I64": "i8", "I32": "i4"}
"""Types of whole numbers that are read as floats, such as indices of experts; NumPy's names."""
MOST_WHOLE = 1 << 24
"""All integers below this are numbers of float32."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor in the file's own codes.

    Attributes
    ----------
    name : name in the file.
    shape : elements, outermost axis first.
    type : storage type as GGUF names them: "F32", "BF16", "Q4_K", ...
    raw : uint8 [rows..., bytes of a row], read-only, mapped; a vector has shape [bytes].
    """

    name: str
    shape: tuple[int, ...]
    type: str
    raw: npt.NDArray[np.uint8]


def stored_tensor(
    name: str, shape: tuple[int, ...], type_: str, raw: npt.NDArray[np.uint8], where: str
) -> RawTensor:
    """Return a tensor in the file's codes, integers as float32, which holds them.

    Raises
    ------
    FormatError : an integer is too large.
    """
    if type_ not in INTEGERS:
        return RawTensor(name, shape, type_, raw)
    values = raw.view(f"<{INTEGERS[type_]}")
    if values.size and max(abs(int(values.min())), int(values.max())) >= MOST_WHOLE:
        raise FormatError(f"{name} has integers of {MOST_WHOLE} or more", where=where)
    return RawTensor(name, shape, "F32", values.astype("<f4").view(np.uint8))
