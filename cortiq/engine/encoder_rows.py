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
from cortiq.backend.held_rows import Values
from cortiq.backend.row_runs import RowRun, RowRuns
from cortiq.engine.session import check_outcome
from cortiq.errors import CortiqError
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
        found = self.find(digest)
        return self.keep(digest, make()) if found is None else found

    def find(self, digest: str) -> Floats | None:
        """Return the rows of a digest, which are the last to be given up now; None if not kept."""
        if digest in self._kept:
            self._kept.move_to_end(digest)
        return self._kept.get(digest)

    def keep(self, digest: str, rows: Floats) -> Floats:
        """Keep the rows of a digest as those made last; return them, which nobody changes."""
        rows.flags.writeable = False
        self._kept.pop(digest, None)
        self._kept[digest] = rows
        while sum(rows.size for rows in self._kept.values()) > self.most and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return rows

    def clear(self) -> None:
        """Keep none."""
        self._kept.clear()


class EncoderRows(NamedTuple):
    """Rows of an entry for one sequence of an encoder, which has none of this entry's yet.

    Attributes
    ----------
    rows : how many. inputs : what they supply, [rows, ...]: arrays, or values that are held.
    """

    state: State
    rows: int
    inputs: Mapping[str, Any]


class EntryPass:
    """An entry under way for rows of some sequences, in one batch.

    Parameters
    ----------
    failed : what could not be done, where a value leaves the contract's domain.
    held : the outputs are for rows of other entries, and may stay where they are.
    """

    def __init__(
        self, executable: Executable, given: Sequence[EncoderRows], entry: str, failed: str,
        held: bool = False,
    ) -> None:  # fmt: skip
        self._names, self._given, self._failed = backend_names(executable), given, failed
        self._wants = tuple(Named(name) for name in executable.program.graphs[entry].outputs)
        runs = [RowRun(s, 0, [0] * n, [self._wants] * n, inputs) for s, n, inputs in given]
        self._rows = RowRuns(runs)
        with attributed_to(self._names):
            self._ticket = executable.forward(Batch(self._rows, entry, held)) if given else None

    def outputs(self) -> list[list[Values] | CortiqError]:
        """Wait; return the entry's outputs for each sequence, float32 [rows, ...], or why there are
        none.
        """
        if self._ticket is None:
            return []
        with attributed_to(self._names):
            result = self._ticket.result()
        found: list[list[Values] | CortiqError] = []
        for start, own in zip(self._rows.starts, self._given, strict=True):
            try:
                check_outcome(result.outcomes[own.state], 0, self._failed)
            except CortiqError as error:
                found.append(error)
                continue
            part = range(start, start + own.rows)
            found.append([column(result.rows, part, want) for want in self._wants])
        return found


def entry_outputs(
    executable: Executable, given: Sequence[EncoderRows], entry: str, failed: str
) -> list[list[Floats]]:
    """Run an entry for rows of some sequences in one batch; return the entry's outputs for each,
    float32 [rows, ...]. See `EntryPass`.

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    """
    made = []
    for found in EntryPass(executable, given, entry, failed).outputs():
        if isinstance(found, CortiqError):
            raise found
        made.append([np.asarray(rows, F32) for rows in found])
    return made


def rows_of_squares(
    program: Program,
    state: State,
    squares: Sequence[Values],
    entry: str = PROJECTOR,
    inputs: Mapping[str, npt.NDArray[Any]] = NO_INPUTS,
) -> EncoderRows:
    """Return the rows of an entry whose rows are made of an encoder's: those of the text model.

    Parameters
    ----------
    squares : of each output, [squares, rows of a square, width].
    inputs : what each row supplies besides, [squares, ...].
    """
    graph, count = program.graphs[entry], len(squares[0])
    more: dict[str, Any] = dict(inputs)
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
