"""Values of codes as float32, and rows of an embedding table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortiq.errors import RequestError
from cortiq.numerics.contract import (
    F32,
    Flags,
    Floats,
    snap,
)
from cortiq.numerics.layouts import Weight, decode, floats, raw_fields, raw_floats
from cortiq.numerics.unpacked_weights import (
    Codes,
    fold,
)


def dequantise_codes(codes: Codes, faults: Flags | None = None) -> Floats:
    """Return every element as float32 [N, K]: RN(scale·f32(code)), or with minima
    RN(RN(scale·f32(code)) + RN(minimum·f32(offset))); snapped.

    In every GGUF layout both products are exact, so that the value is rounded at most once and
    equals the `gguf` package's (which calls a zero −0 at times).
    """
    columns = codes.codes.shape[1]
    scale = np.repeat(codes.scale, codes.block, axis=1)[:, :columns]
    values = codes.codes.astype(F32) * scale
    if codes.offsets is not None and codes.minimum is not None:
        minimum = np.repeat(codes.minimum, codes.block // codes.sub, axis=1)
        low = codes.offsets.astype(F32) * minimum
        values = values + np.repeat(low, codes.sub, axis=1)
    return snap(values, faults)


def embedding_rows(
    weight: Weight,
    ids: npt.NDArray[np.integer],
    faults: Flags | None = None,
    name: str = "embedding",
) -> Floats:
    """Return rows `ids` of a table as float32 [len(ids), K]: exact values of float layouts, else
    `dequantise_codes`. An id outside the table is a `RequestError`.

    Parameters
    ----------
    faults : bool [len(ids)]: rows that hold values, or scales, outside the domain are flagged.
        Without it they are errors as in `decode` and `floats`.
    """
    ids = np.asarray(ids)
    outside = (ids < 0) | (ids >= weight.shape[0])
    if outside.any():
        first = int(ids[outside][0])
        raise RequestError(f"token id {first} is outside the vocabulary of {weight.shape[0]}")
    picked = weight.take(ids)
    if weight.layout.kind == "float":
        return floats(picked, name) if faults is None else snap(raw_floats(picked), faults)
    if faults is None:
        return dequantise_codes(decode(picked, name))
    fields = raw_fields(picked)
    minimum = fields.minimum
    fields = fields._replace(
        scale=snap(fields.scale, faults), minimum=None if minimum is None else snap(minimum, faults)
    )
    return dequantise_codes(fold(fields), faults)
