"""Rows of encoders: one entry graph run for a batch, and the results that are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cortiq.backend import Batch, Executable, Named, Row, Want
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.session import Session, check_outcome
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


def entry_rows(
    executable: Executable, session: Session, rows: Sequence[Row], entry: str, failed: str
) -> Sequence[Mapping[Want, Any]]:
    """Run an entry for rows of a session's one sequence; return what each row gives.

    Parameters
    ----------
    failed : what could not be done, where a value leaves the contract's domain.

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    """
    with attributed_to(backend_names(executable)):
        result = executable.forward(Batch(rows, entry)).result()
    check_outcome(result.outcomes[session.state], 0, failed)
    return result.rows


def projected_rows(
    executable: Executable,
    session: Session,
    squares: Sequence[Floats],
    failed: str,
    entry: str = PROJECTOR,
    inputs: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Floats:
    """Compute the rows of an entry whose rows are made of an encoder's: those of the text model.

    Parameters
    ----------
    squares : of each output, float32 [squares, rows of a square, width]. failed : see `entry_rows`.
    inputs : what each row supplies besides, [squares, ...].
    """
    graph, count = executable.program.graphs[entry], len(squares[0])
    wants = tuple(Named(name) for name in graph.outputs)
    more = dict(inputs or {})
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
    rows = [
        Row(session.state, i, 0, wants, {name: array[i] for name, array in more.items()})
        for i in range(count)
    ]
    made = entry_rows(executable, session, rows, entry, failed)
    return np.stack([np.concatenate([np.asarray(row[w], F32) for w in wants]) for row in made])
