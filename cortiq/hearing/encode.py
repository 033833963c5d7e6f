"""Running an encoder: the rows of a window of sound, computed once for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from cortiq.backend import Executable
from cortiq.backend.held_rows import joined
from cortiq.engine.encoder_rows import (
    EncoderRows,
    KeptRows,
    entry_outputs,
    rows_of_squares,
)
from cortiq.engine.session import Session
from cortiq.hearing.features import PreparedSound
from cortiq.hearing.grid import BANDS, CELLS, convolved
from cortiq.hearing.spoken import SoundWindow, SpokenSound
from cortiq.hearing.whisper import FRAME, FRAMES, KERNEL, STRIDE
from cortiq.ir.encoders import LAST, PROJECTOR
from cortiq.numerics.contract import Floats

KEPT_ROWS = 1 << 23
"""Floats of windows' rows that are kept: 32 MiB."""
FAILED = "the model cannot compute this sound"


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

    def makers(self, sounds: Sequence[PreparedSound | SpokenSound]) -> list[Callable[[], Floats]]:
        """Return what makes the rows of each sound of a prompt, when they are asked for."""
        return [partial(self.rows, sound) for sound in sounds]

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


def with_zeros(hidden: Floats) -> Floats:
    """Return the rows of an encoder, and a row of zeros after them."""
    return np.pad(hidden, ((0, 1), (0, 0)))


def spoken_rows(executable: Executable, sound: SpokenSound) -> Floats:
    """Compute the rows of a text model that a sound becomes, window by window."""
    found = []
    for window in sound.windows:
        hidden = sound_rows(executable, window.frames, window)
        with Session(executable, len(window.squares)) as session:
            squares = [with_zeros(hidden)[window.squares]]
            given = rows_of_squares(
                executable.program, session.state, squares, inputs=window.supplied
            )
            (made,) = entry_outputs(executable, [given], PROJECTOR, FAILED)
            found.append(joined(made, axis=1))
    return np.concatenate(found)


def sound_rows(executable: Executable, frames: Floats, window: SoundWindow | None = None) -> Floats:
    """Compute the rows of a window: what convolutions make of all frames, then all rows in a batch.

    Parameters
    ----------
    frames : [frames, bands], or pieces of them for an encoder that convolves over both.
    window : which rows of these the encoder takes, and what each supplies besides; by default all.

    Raises
    ------
    SequenceFailedError : a value left the contract's domain.
    RequestError : there is no memory for so many rows.
    """
    near = _grid_rows(executable, frames) if frames.ndim == 3 else _near_rows(executable, frames)
    near = near[: max(1, len(frames) // STRIDE)] if window is None else window.taken(near)
    names, count = executable.program.trunk.inputs, len(near)
    supplied = {BANDS if BANDS in names else FRAME: near, **(window.inputs if window else {})}
    if LAST in names:
        supplied[LAST] = np.full(count, count - 1, np.int32)
    with Session(executable, count) as session:
        own = EncoderRows(session.state, count, supplied)
        return entry_outputs(executable, [own], "trunk", FAILED)[0][0]


def _near_rows(executable: Executable, frames: Floats) -> Floats:
    """Compute what the second convolution reads."""
    given = neighbours(frames, 1)
    whole = max(1, len(given) // STRIDE)
    pieces = [given[start : start + whole] for start in range(0, len(given), whole)]
    made = [_convolved(executable, FRAMES, piece, FRAME) for piece in pieces]
    return neighbours(np.concatenate(made), STRIDE)


def _grid_rows(executable: Executable, pieces: Floats) -> Floats:
    """Compute what convolutions over time and frequency make of pieces of a spectrogram."""
    return convolved(pieces, executable.program, partial(_convolved, executable, name=CELLS))


def _convolved(executable: Executable, entry: str, given: Floats, name: str) -> Floats:
    with Session(executable, len(given)) as session:
        rows = EncoderRows(session.state, len(given), {name: given})
        return entry_outputs(executable, [rows], entry, FAILED)[0][0]
