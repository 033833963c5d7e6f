"""Rows of encoders: one entry graph run for a batch, and the results that are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cortiq.backend import Batch, Executable, Named, Row, Want
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.session import Session, check_outcome
from cortiq.ir.encoders import PROJECTOR, SHARES, square_of
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
    executable: Executable, session: Session, squares: Sequence[Floats], failed: str
) -> Floats:
    """Compute the rows of the text model of the encoder's outputs, each of a square's rows.

    Parameters
    ----------
    squares : of each output, float32 [squares, rows of a square, width]. failed : see `entry_rows`.
    """
    graph = executable.program.graphs[PROJECTOR]
    wants = tuple(Named(name) for name in graph.outputs)
    share = np.full(squares[0].shape[1], F32(1) / F32(squares[0].shape[1]), F32)
    more = {SHARES: share} if SHARES in graph.inputs else {}
    shapes = {name: graph.values[name].shape for name in map(square_of, range(len(squares)))}
    rows = []
    for i in range(len(squares[0])):
        pairs = zip(shapes.items(), squares, strict=True)
        given = {name: part[i].reshape(shape) for (name, shape), part in pairs}
        rows.append(Row(session.state, i, 0, wants, {**given, **more}))
    made = entry_rows(executable, session, rows, PROJECTOR, failed)
    return np.stack([np.concatenate([np.asarray(row[w], F32) for w in wants]) for row in made])
