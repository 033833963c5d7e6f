"""WAV files: PCM of 8 to 32 bits and floats, read as hostile input."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from cortiq.errors import RequestError
from cortiq.hearing.sound import Sound, check_extent

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
NOT_KNOWN = 0x7FFF0000
"""A chunk of this size or more was written to a pipe: it goes on to the file's end."""
BLOCK = 1 << 18
"""Frames that are converted at a time."""


class Encoding(NamedTuple):
    """Encoding of samples, as the chunk `fmt ` has it."""

    kind: int
    channels: int
    rate: int
    bits: int


class OtherEncodingError(RequestError):
    """The samples are neither PCM nor floats: another reader may know them."""


def is_wav(data: bytes) -> bool:
    """Return whether bytes begin as a WAV file does."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def read_wav(data: bytes) -> Sound:
    """Return the sound of a WAV file.

    Raises
    ------
    RequestError : it is cut off, contradicts itself, or is longer than the limit.
    OtherEncodingError : it has samples of another encoding.
    """
    encoding, at = None, 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8
        rest = len(data) - at
        if name == b"data":
            if encoding is None:
                raise _damaged("its samples come before their encoding")
            if rest < size < NOT_KNOWN:
                raise _damaged(f"it says {size} bytes of samples and has {rest}")
            return _samples(memoryview(data)[at : at + min(size, rest)], encoding)
        if size > rest:
            raise _damaged(f"a part of {size} bytes has {rest}")
        if name == b"fmt ":
            encoding = _encoding(data[at : at + size])
        at += size + size % 2
    raise _damaged("it has no samples")


def _damaged(why: str) -> RequestError:
    return RequestError(f"the WAV file is damaged: {why}", where="audio", hint="give a whole file")


def _encoding(chunk: bytes) -> Encoding:
    if len(chunk) < 16:
        raise _damaged("its encoding is cut off")
    kind, channels, rate, _, align, bits = struct.unpack("<HHIIHH", chunk[:16])
    if kind == EXTENSIBLE and len(chunk) >= 26:
        kind = int.from_bytes(chunk[24:26], "little")
    if kind not in (PCM, FLOAT) or bits not in ((8, 16, 24, 32) if kind == PCM else (32, 64)):
        what = f"WAV samples of the encoding {kind} with {bits} bits"
        raise OtherEncodingError(what, where="audio", hint="give PCM or floats")
    check_extent(0, channels, rate)
    if align != channels * bits // 8:
        raise _damaged(f"a frame of {channels} samples of {bits} bits has {align} bytes")
    return Encoding(kind, channels, rate, bits)


def _samples(data: memoryview, encoding: Encoding) -> Sound:
    """Convert samples block by block, and mix the channels."""
    width = encoding.channels * encoding.bits // 8
    frames = len(data) // width
    check_extent(frames, encoding.channels, encoding.rate)
    out = np.empty(frames, np.float32)
    for start in range(0, frames, BLOCK):
        stop = min(start + BLOCK, frames)
        values = _converted(data[start * width : stop * width], encoding)
        out[start:stop] = mixed(values.reshape(-1, encoding.channels))
    return Sound(out, encoding.rate)


def _converted(data: memoryview, encoding: Encoding) -> np.ndarray:
    """Return samples as float64, full scale being 1."""
    if encoding.kind == FLOAT:
        return np.frombuffer(data, f"<f{encoding.bits // 8}").astype(np.float64)
    if encoding.bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.float64) - 128.0) / 128.0
    if encoding.bits == 24:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        whole = (parts[:, 0] << 8) | (parts[:, 1] << 16) | (parts[:, 2] << 24)
        return whole / 2147483648.0
    whole = np.frombuffer(data, f"<i{encoding.bits // 8}")
    return whole / float(1 << (encoding.bits - 1))


def mixed(values: np.ndarray) -> np.ndarray:
    """Return frames [n, channels] as one channel: their sum in ascending order, divided."""
    total = np.zeros(len(values))
    for channel in range(values.shape[1]):
        total = total + values[:, channel]
    return total / values.shape[1]
