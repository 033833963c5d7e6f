"""Numbers of a configuration that folders hold as a tensor."""

from __future__ import annotations

from cortiq.errors import FormatError
from cortiq.models.open_checkpoint import OpenCheckpoint
from cortiq.models.weights import vector_weight
from cortiq.numerics.layouts import floats

MOST = 1 << 16
"""More numbers than a configuration has of anything."""


def folder_vector(checkpoint: OpenCheckpoint, name: str) -> tuple[float, ...]:
    """Return the numbers of a vector.

    Raises
    ------
    FormatError : there is none, it is longer than anything a configuration says, or a number is
        not finite.
    """
    if name not in checkpoint:
        raise FormatError(f"has no tensor {name!r}")
    tensor = checkpoint.tensor(name)
    if len(tensor.shape) != 1 or not 0 < tensor.shape[0] <= MOST:
        raise FormatError(f"{name} is {list(tensor.shape)}, not a short vector")
    return tuple(map(float, floats(vector_weight([tensor], tuple(tensor.shape)), name)[0]))
