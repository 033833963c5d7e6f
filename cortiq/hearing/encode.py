"""Running an encoder: the rows of a window of sound, computed once for each."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from cortiq.backend import Batch, Executable, Named, Row
from cortiq.backend.error_attribution import attributed_to, backend_names
from cortiq.engine.session import Session, check_outcome
from cortiq.hearing.features import PreparedSound
from cortiq.hearing.whisper import CONVOLVED, FRAME, FRAMES, HIDDEN, KERNEL, STRIDE
from cortiq.ir.encoders import LAST
from cortiq.numerics.contract import F32, Floats

KEPT_ROWS = 1 << 23
"""Floats of windows' rows that are kept: 32 MiB."""
FAILED = "the sound cannot be heard by this model"


class SoundEncoder:
    """An encoder on a backend, and the rows that it made last."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._kept: OrderedDict[str, Floats] = OrderedDict()

    def rows(self, sound: PreparedSound) -> Floats:
        """Return a window's rows, float32 [rows, width]; those made last are not made again."""
        found = self._kept.pop(sound.digest, None)
        if found is None:
            found = sound_rows(self.executable, sound.frames)
            found.flags.writeable = False
        self._kept[sound.digest] = found
        while sum(rows.size for rows in self._kept.values()) > KEPT_ROWS and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return found

    def close(self) -> None:
        """Release the encoder."""
        self._kept.clear()
        self.executable.close()


def neighbours(rows: Floats, stride: int) -> Floats:
    """Return what a convolution reads at every stride: float32 [n, width·3].

    A row lists its values by column, then neighbour, as a kernel does; zeros lie around the rows.
    """
    padded = np.pad(rows, ((KERNEL // 2, KERNEL // 2), (0, 0)))
    near = np.lib.stride_tricks.sliding_window_view(padded, KERNEL, axis=0)[::stride]
    return np.ascontiguousarray(near.reshape(len(near), -1))


def sound_rows(executable: Executable, frames: Floats) -> Floats:
    """Compute the rows of a window: the first convolution of all frames, then all rows in a batch.

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    RequestError : there is no memory for so many rows.
    """
    given = neighbours(frames, 1)
    count = len(given) // STRIDE
    pieces = [given[start : start + count] for start in range(0, len(given), count)]
    made = np.concatenate([_convolved(executable, piece) for piece in pieces])
    near, want = neighbours(made, STRIDE), (Named(HIDDEN),)
    last = np.array(count - 1, np.int32)
    inputs = [{FRAME: row, LAST: last} for row in near]
    with Session(executable, count) as session:
        rows = session.read_rows(session.feed_each([0] * count, [want] * count, inputs))
        return np.stack([np.asarray(row[want[0]], F32) for row in rows])


def _convolved(executable: Executable, given: Floats) -> Floats:
    want = Named(CONVOLVED)
    with Session(executable, len(given)) as session, attributed_to(backend_names(executable)):
        rows = [Row(session.state, i, 0, (want,), {FRAME: row}) for i, row in enumerate(given)]
        result = executable.forward(Batch(rows, FRAMES)).result()
        check_outcome(result.outcomes[session.state], 0, FAILED)
        return np.stack([np.asarray(row[want], F32) for row in result.rows])
