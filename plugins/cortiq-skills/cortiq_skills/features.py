"""Features that skills are chosen by: rows behind a layer, averaged over a text or on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cortiq.backend import Executable, Named
from cortiq.engine.prompt_encoded import check_encoded
from cortiq.engine.session import Session
from cortiq.errors import RequestError
from cortiq.ir import Program
from cortiq.ir.trunk_layers import layer_values
from cortiq.numerics.contract import F32, Floats

ROWS = 64
KEPT, TAKEN = F32(0.8), F32(0.2)
"""Shares of the average so far and of a new row in a running average."""


def layer_value(program: Program, layer: int) -> str:
    """Return the value behind a layer.

    Raises
    ------
    RequestError : there is no such layer.
    """
    found = layer_values(program)
    if layer not in found:
        what = f"layer {layer} is none of the model's {len(found)}"
        raise RequestError(what, where="skill.layer")
    return found[layer]


def default_layer(program: Program) -> int:
    """Return the layer two thirds into a model."""
    return 2 * len(layer_values(program)) // 3


def text_features(executable: Executable, ids: Sequence[int], layer: int) -> Floats:
    """Return the mean row behind a layer over all positions of a text: float64 sums, rounded once.

    The ids are a text's own, without a start token and without a chat template.

    Raises
    ------
    RequestError : the text is empty.
    """
    if not ids:
        raise RequestError("the text has no tokens", where="skill.features")
    check_encoded(None, executable.program)
    want = Named(layer_value(executable.program, layer))
    total: npt.NDArray[np.float64] | None = None
    ids = list(ids)[: executable.program.context]
    with Session(executable, len(ids)) as session:
        for at in range(0, len(ids), ROWS):
            rows = session.read_rows(session.feed(ids[at : at + ROWS], (want,), every=True))
            for row in rows:
                values = np.asarray(row[want], np.float64)
                total = values.copy() if total is None else total + values
    assert total is not None
    return (total / len(ids)).astype(F32)


class RunningFeatures:
    """The running average of rows: the first as it is, then 0.8 of it and 0.2 of the next."""

    def __init__(self) -> None:
        self.value: Floats | None = None

    def add(self, row: Floats) -> Floats:
        """Add a row; return the average."""
        row = np.asarray(row, F32)
        self.value = row.copy() if self.value is None else KEPT * self.value + TAKEN * row
        return self.value
