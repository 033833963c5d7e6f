"""Encoders: programs whose rows see keys after themselves, and what their rows supply for that.

One rule for all rows of this kind: `Attend` with `until` sees keys up to one that the row names.
A text is one batch of rows; its last key, and for a layer with a window a nearer one, are inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cortiq.ir.op import Described

ENCODER = "encoder"
"""Fact of a program that is an `Encoder`."""
PROJECTOR, ROWS = "projector", "rows"
"""Entry that makes a row of a text model of some rows of an encoder, a square, and its output."""
SQUARE, SHARES = "square", "shares"
"""Inputs of that entry: the rows of a square, and what each of them weighs."""
LAST, NEAR, SEGMENT, PLACE = "last", "last.near", "segment", "place"
"""Inputs: last keys of layers without and with a window, number of the text, learned position."""
SENTENCE, POOLED = "sentence", "pooled"
"""Entry that makes a text's vector of its pooled row, and that row, the entry's input."""
STAGE = "stage.{}"
"""Entries of a tower whose rows grow fewer: each one's are made of squares of those before."""


def square_of(number: int) -> str:
    """Return the projector's input for the rows of the encoder's output of a number."""
    return f"{SQUARE}.{number}" if number else SQUARE


@dataclass(frozen=True)
class Encoder(Described):
    """Inputs that the rows of an encoder supply, and names of its outputs.

    Attributes
    ----------
    reach : by input, how many keys after itself a row sees at most; 0 for all of its text.
    segments : texts of a pair that the input `segment` tells apart; 0 without such an input.
    places : what is added to a position for the input `place`; 0 without such an input.
    pooling : how hidden rows become one vector unless the files say: `mean`, `cls` or `last`.
    scores : the value with a classifier's outputs; empty without a classifier.
    scored : the value that a classifier reads, which rows may supply; empty for its own first row.
    """

    reach: Mapping[str, int] = field(default_factory=lambda: {LAST: 0})
    segments: int = 0
    places: int = 0
    pooling: str = "mean"
    scores: str = ""
    scored: str = ""

    def inputs(self, segments: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """Return what each row of a text supplies.

        Parameters
        ----------
        segments : for each row the number of its text, 0 or 1.
        """
        count, rows = len(segments), []
        for position, segment in enumerate(segments):
            ends = {
                name: min(position + far, count - 1) if far else count - 1
                for name, far in self.reach.items()
            }
            if self.segments:
                ends[SEGMENT] = min(segment, self.segments - 1)
            if self.places:
                ends[PLACE] = position + self.places
            rows.append({name: np.array(value, np.int32) for name, value in ends.items()})
        return rows
