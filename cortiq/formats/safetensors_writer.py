"""Small safetensors files, written whole: the same arrays give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from cortiq.atomic import write_atomically

TYPES = {"<f4": "F32", "<f2": "F16", "<i4": "I32"}
ALIGNMENT = 8


def write_safetensors(
    path: Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Write arrays of `TYPES`, the widest first and then by name, and metadata.

    Raises
    ------
    OSError : it cannot be written; the old file is unchanged.
    """
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    table: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        kind = TYPES[array.dtype.newbyteorder("<").str]
        table[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    head = json.dumps(table, separators=(",", ":")).encode()
    head += b" " * (-len(head) % ALIGNMENT)
    little = (array.astype(array.dtype.newbyteorder("<")).tobytes() for _, array in ordered)
    write_atomically(path, (len(head).to_bytes(8, "little"), head, *little))
