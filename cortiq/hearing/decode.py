"""Sound of callers as samples: files, bytes, arrays, within limits.

WAV files are read here; soundfile decodes FLAC, Ogg and MP3, and is imported when the first such
file comes (`pip install soundfile`).
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np

from cortiq.errors import RequestError, shown
from cortiq.formats.given_files import read_given
from cortiq.hearing.sound import MAX_BYTES, MAX_FRAMES, Sound, check_extent, checked
from cortiq.hearing.wav import BLOCK, OtherEncodingError, is_wav, mixed, read_wav

FORMATS = ("WAV", "FLAC", "OGG", "MP3")
WHY_LETTERS = 200
ARRAY = "give floats between -1 and 1, or int16, [samples] or [samples, channels], and a rate"


def sound_of(audio: Any) -> Sound:
    """Return a sound in one channel.

    Parameters
    ----------
    audio : bytes of a file, a path, a pair (array, rate in hertz), or a `Sound`.

    Raises
    ------
    RequestError : it is none of these, too long, damaged, or soundfile is not installed.
    """
    if isinstance(audio, Sound):
        check_extent(len(audio.samples), 1, audio.rate)
        return checked(audio)
    if isinstance(audio, tuple) and len(audio) == 2 and isinstance(audio[0], np.ndarray):
        return checked(_of_array(*audio))
    if isinstance(audio, (bytes, bytearray, memoryview)):
        return checked(_decoded(bytes(audio)))
    if isinstance(audio, (str, os.PathLike)):
        return checked(_decoded(read_given(audio, MAX_BYTES), str(audio)))
    hint = "give a path, the bytes of a file, or an array with its rate: (array, 16000)"
    raise RequestError(f"no sound: {shown(audio)}", where="audio", hint=hint)


def _of_array(array: np.ndarray, rate: Any) -> Sound:
    whole = array.dtype == np.int16
    if array.ndim not in (1, 2) or not (whole or array.dtype.kind == "f") or type(rate) is not int:
        what = f"an array of {array.dtype}{list(array.shape)} at the rate {shown(rate)}"
        raise RequestError(f"{what} is no sound", where="audio", hint=ARRAY)
    frames = array[:, None] if array.ndim == 1 else array
    check_extent(len(frames), frames.shape[1], rate)
    values = frames / 32768.0 if whole else frames.astype(np.float64)
    with np.errstate(over="ignore"):
        return Sound(mixed(values).astype(np.float32), rate)


def _decoded(data: bytes, name: str = "audio") -> Sound:
    """Decode a file, which errors name."""
    if len(data) > MAX_BYTES:
        what = f"a file of sound of more than {MAX_BYTES} bytes"
        raise RequestError(what, where=name, hint="cut it into several")
    if not is_wav(data):
        return _by_soundfile(data, name)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return read_wav(data)
    except OtherEncodingError:
        return _by_soundfile(data, name)


def _soundfile() -> Any:
    """Import soundfile; RequestError if it is not installed."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: libsndfile is not there
        hint = "pip install soundfile, or give a WAV file of PCM or floats"
        what = "other sound files than WAV need the package soundfile"
        raise RequestError(what, where="audio", hint=hint) from None
    return soundfile


def _by_soundfile(data: bytes, name: str) -> Sound:
    """Decode by libsndfile, block by block: a header that lies takes no memory."""
    soundfile = _soundfile()
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            check_extent(0, file.channels, file.samplerate)
            blocks, count = [], 0
            while len(block := file.read(BLOCK, dtype="float32", always_2d=True)):
                count += len(block)
                check_extent(min(count, MAX_FRAMES + 1), file.channels, file.samplerate)
                blocks.append(mixed(block.astype(np.float64)).astype(np.float32))
            samples = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
            return Sound(samples, file.samplerate)
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        why = getattr(error, "error_string", "") or str(error) or type(error).__name__
        what = f"the sound cannot be decoded: {why[:WHY_LETTERS]}"
        hint = f"give a whole {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
        raise RequestError(what, where=name, hint=hint) from None
