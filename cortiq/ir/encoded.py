"""Encoder and decoder: rows of an encoder that a trunk attends to from every row (cross attention).

An entry of the trunk's program takes the encoder's rows, one a position, and stores keys and values
of them. The trunk attends to that slot up to a last key that its rows supply: `Attend` with
`until` over a slot that another entry writes. The entry has seen all rows before the trunk's first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortiq.ir.graph import Program
from cortiq.ir.op import Described

ENCODED = "encoded"
"""Fact of a program that is an `EncodedRows`; the entry, and its input f32[width]."""
LAST_ENCODED = "last.encoded"
"""Input of the trunk: the last row of the encoder that a row sees; -1 for none."""


@dataclass(frozen=True)
class EncodedRows(Described):
    """Rows of an encoder that a trunk sees.

    Attributes
    ----------
    most : rows of the encoder at most. width : of each.
    """

    most: int
    width: int


def last_encoded(rows: int) -> dict[str, np.ndarray]:
    """Return what a row of the trunk supplies after so many rows of the encoder."""
    return {LAST_ENCODED: np.array(rows - 1, np.int32)}


def encoded_rows(program: Program) -> EncodedRows | None:
    """Return what a program's trunk sees of an encoder; None for nothing."""
    found: EncodedRows | None = program.facts.get(ENCODED)
    return found


def most_rows(program: Program) -> int:
    """Return the rows that an entry of a sequence sees at most: the context, or the encoder's."""
    encoded = encoded_rows(program)
    return program.context if encoded is None else max(program.context, encoded.most)
