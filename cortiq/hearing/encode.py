"""Running an encoder: the rows of a window of sound, computed once for each."""

from __future__ import annotations

import numpy as np

from cortiq.backend import Executable, Named, Row
from cortiq.engine.encoder_rows import KeptRows, entry_rows
from cortiq.engine.session import Session
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
        self._kept = KeptRows(KEPT_ROWS)

    def rows(self, sound: PreparedSound) -> Floats:
        """Return a window's rows, float32 [rows, width]; those made last are not made again."""
        return self._kept.get(sound.digest, lambda: sound_rows(self.executable, sound.frames))

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
    with Session(executable, len(given)) as session:
        rows = [Row(session.state, i, 0, (want,), {FRAME: row}) for i, row in enumerate(given)]
        made = entry_rows(executable, session, rows, FRAMES, FAILED)
        return np.stack([np.asarray(row[want], F32) for row in made])
