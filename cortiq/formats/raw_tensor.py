"""A tensor in a file's own codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
