"""Rows of encoders: one entry graph run for a batch, and the results that are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cortiq.backend import Batch, Executable, Named, State
from cortiq.backend.batch import NO_INPUTS
from cortiq.backend.columns import column
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.engine.session import check_outcome
from cortiq.ir import Program
from cortiq.ir.encoders import LAST, PROJECTOR, SHARES, square_of
from cortiq.numerics.contract import F32, Floats


class KeptRows:
    """The rows that an encoder made last, by what they were made of.

    Attributes
    ----------
    most : floats that are kept; one result is kept even if it has more.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[str, Floats] = OrderedDict()

    def get(self, digest: str, make: Callable[[], Floats]) -> Floats:
        """Return the rows of a digest, which `make` computes if they are not kept."""
        found = self._kept.pop(digest, None)
        if found is None:
            found = make()
            found.flags.writeable = False
        self._kept[digest] = found
        while sum(rows.size for rows in self._kept.values()) > self.most and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return found

    def clear(self) -> None:
        """Keep none."""
        self._kept.clear()


class EncoderRows(NamedTuple):
    """Rows of an entry for one sequence of an encoder, which has none of this entry's yet.

    Attributes
    ----------
    rows : how many. inputs : what they supply, [rows, ...].
    """

    state: State
    rows: int
    inputs: Mapping[str, npt.NDArray[Any]]


def entry_outputs(
    executable: Executable, given: Sequence[EncoderRows], entry: str, failed: str
) -> list[list[Floats]]:
    """Run an entry for rows of some sequences in one batch; return the entry's outputs for each,
    float32 [rows, ...].

    Parameters
    ----------
    failed : what could not be done, where a value leaves the contract's domain.

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    """
    wants = tuple(Named(name) for name in executable.program.graphs[entry].outputs)
    rows = RowRuns(
        [RowRun(state, 0, [0] * count, [wants] * count, inputs) for state, count, inputs in given]
    )
    with attributed_to(backend_names(executable)):
        result = executable.forward(Batch(rows, entry)).result()
    found = []
    for start, own in zip(rows.starts, given, strict=True):
        check_outcome(result.outcomes[own.state], 0, failed)
        part = range(start, start + own.rows)
        found.append([np.asarray(column(result.rows, part, want), F32) for want in wants])
    return found


def rows_of_squares(
    program: Program,
    state: State,
    squares: Sequence[Floats],
    entry: str = PROJECTOR,
    inputs: Mapping[str, npt.NDArray[Any]] = NO_INPUTS,
) -> EncoderRows:
    """Return the rows of an entry whose rows are made of an encoder's: those of the text model.

    Parameters
    ----------
    squares : of each output, float32 [squares, rows of a square, width].
    inputs : what each row supplies besides, [squares, ...].
    """
    graph, count = program.graphs[entry], len(squares[0])
    more = dict(inputs)
    if SHARES in graph.inputs:
        size = squares[0].shape[1]
        more[SHARES] = np.full((count, size), F32(1) / F32(size), F32)
    if LAST in graph.inputs:
        more[LAST] = np.full(count, count - 1, np.int32)
    names = (square_of(n) for n in range(len(squares)))
    given = zip(names, squares, strict=True)
    more |= {
        name: part.reshape(count, *graph.values[name].shape)
        for name, part in given
        if name in graph.inputs
    }
    return EncoderRows(state, count, more)


def joined(parts: Sequence[Floats], axis: int = 0) -> Floats:
    """Return arrays as one; a single one as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)
