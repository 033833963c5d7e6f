"""Running an encoder: the rows of a window of sound, computed once for each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cortiq.backend import Executable
from cortiq.engine.encoder_rows import (
    EncoderRows,
    KeptRows,
    entry_outputs,
    joined,
    rows_of_squares,
)
from cortiq.engine.session import Session
from cortiq.hearing.features import PreparedSound
from cortiq.hearing.spoken import SpokenSound
from cortiq.hearing.whisper import FRAME, FRAMES, KERNEL, STRIDE
from cortiq.ir.encoders import LAST, PROJECTOR
from cortiq.numerics.contract import Floats

KEPT_ROWS = 1 << 23
"""Floats of windows' rows that are kept: 32 MiB."""
FAILED = "the sound cannot be heard by this model"


class SoundEncoder:
    """An encoder on a backend, and the rows that it made last."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable
        self._kept = KeptRows(KEPT_ROWS)

    def rows(self, sound: PreparedSound | SpokenSound) -> Floats:
        """Return the rows of a window, or those of a text model that a sound in a prompt becomes:
        float32 [rows, width]. Those made last are not made again.
        """
        return self._kept.get(sound.digest, lambda: self._made(sound))

    def _made(self, sound: PreparedSound | SpokenSound) -> Floats:
        if isinstance(sound, SpokenSound):
            return spoken_rows(self.executable, sound)
        return sound_rows(self.executable, sound.frames)

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


def spoken_rows(executable: Executable, sound: SpokenSound) -> Floats:
    """Compute the rows of a text model that a sound becomes, window by window."""
    found = []
    for window in sound.windows:
        hidden = sound_rows(executable, window.frames, window.count, window.inputs)
        with Session(executable, len(window.squares)) as session:
            squares = [hidden[window.squares]]
            given = rows_of_squares(executable.program, session.state, squares)
            (made,) = entry_outputs(executable, [given], PROJECTOR, FAILED)
            found.append(joined(made, axis=1))
    return np.concatenate(found)


def sound_rows(
    executable: Executable,
    frames: Floats,
    rows: int | None = None,
    more: Mapping[str, Floats] | None = None,
) -> Floats:
    """Compute the rows of a window: the first convolution of all frames, then all rows in a batch.

    Parameters
    ----------
    rows : of the encoder, which see one another; by default all of the window.
    more : what each of them supplies besides, [rows, ...].

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    RequestError : there is no memory for so many rows.
    """
    given = neighbours(frames, 1)
    whole = max(1, len(given) // STRIDE)
    count = whole if rows is None else rows
    pieces = [given[start : start + whole] for start in range(0, len(given), whole)]
    made = np.concatenate([_convolved(executable, piece) for piece in pieces])
    near, last = neighbours(made, STRIDE)[:count], np.full(count, count - 1, np.int32)
    with Session(executable, count) as session:
        own = EncoderRows(session.state, count, {FRAME: near, LAST: last, **(more or {})})
        return entry_outputs(executable, [own], "trunk", FAILED)[0][0]


def _convolved(executable: Executable, given: Floats) -> Floats:
    with Session(executable, len(given)) as session:
        rows = EncoderRows(session.state, len(given), {FRAME: given})
        return entry_outputs(executable, [rows], FRAMES, FAILED)[0][0]
