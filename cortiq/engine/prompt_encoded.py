"""Rows of an encoder that the rows of a sequence attend to: stored once, before its first row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cortiq.backend import Batch, Executable, Row, State
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.session import check_outcome
from cortiq.errors import RequestError
from cortiq.ir import Program
from cortiq.ir.encoded import ENCODED, encoded_rows
from cortiq.ir.purpose import Purpose, check_continues, purpose_of
from cortiq.numerics.contract import Floats

WHISPER = "take a Whisper model, such as whisper-tiny.en"
FAILED = "the model cannot compute what its encoder made of this sound, or image"


@dataclass(frozen=True, eq=False)
class EncodedPrompt:
    """Rows of an encoder that a sequence attends to besides its own.

    Attributes
    ----------
    count : rows of the encoder.
    make : computes them; called when a sequence is submitted, on the engine's thread.
    digest : SHA-256, in hex, of what the encoder was given.
    """

    count: int
    make: Callable[[], Floats]
    digest: str

    @cached_property
    def rows(self) -> Floats:
        """The rows, float32 [count, width]."""
        return self.make()

    def is_stored(self, state: State) -> bool:
        """Return whether a sequence has the rows' keys and values."""
        return state.length(ENCODED) == self.count

    def store(self, executable: Executable, state: State) -> None:
        """Store the rows' keys and values in a sequence.

        Raises
        ------
        SequenceFailedError : a value left the contract's domain.
        DeclinedError : there is no room for them.
        """
        size = executable.batch_rows
        for start in range(state.length(ENCODED), self.count, size):
            places = range(start, min(start + size, self.count))
            rows = [Row(state, i, 0, (), {ENCODED: self.rows[i]}) for i in places]
            result = executable.forward(Batch(rows, ENCODED)).result()
            check_outcome(result.outcomes[state], start, FAILED)


def check_encoded(encoded: EncodedPrompt | None, program: Program) -> None:
    """Check that a program attends to rows of an encoder where there are such, and only there.

    Raises
    ------
    RequestError : it does not, or they are too many.
    """
    given = encoded_rows(program)
    if encoded is None:
        if given is not None:
            check_continues(program)
        return
    if given is None or purpose_of(program) is not Purpose.SPEECH:
        raise RequestError("the model transcribes no speech", where="audio", hint=WHISPER)
    if not 0 < encoded.count <= given.most:
        raise RequestError(f"{encoded.count} rows of an encoder: at most {given.most}")


def compute_encoded(encoded: EncodedPrompt | None, program: Program) -> None:
    """Compute the rows, and check them."""
    given = encoded_rows(program)
    if encoded is None or given is None:
        return
    rows = encoded.rows
    if rows.shape != (encoded.count, given.width) or not np.isfinite(rows).all():
        what = f"the encoder's rows are {list(rows.shape)}: not {encoded.count} of {given.width}"
        raise RequestError(what, where="audio")


def store_all(
    executable: Executable, sequences: Iterable[Any], failed: Callable[[Any, Exception], None]
) -> None:
    """Store what sequences attend to besides their own rows, where that was not done yet.

    Parameters
    ----------
    failed : called with a sequence for which it cannot be done, and the reason.
    """
    for sequence in [one for one in sequences if one.lacks_encoded]:
        try:
            with attributed_to(backend_names(executable)):
                sequence.request.attended.store(executable, sequence.live_state())
        except Exception as error:
            failed(sequence, error)
