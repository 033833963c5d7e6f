"""Rows of encoders: one entry graph run for a batch, and the results that are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cortiq.backend import Batch, Executable, Row, Want
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.session import Session, check_outcome
from cortiq.numerics.contract import Floats


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
