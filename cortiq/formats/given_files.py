"""Files that callers name: read whole, within a limit."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from cortiq.errors import RequestError

MAX_TEXT_BYTES = 256 << 20
"""Most bytes of a text that is scored or learnt from."""


def read_given(path: Path, most: int) -> bytes:
    """Read a file, but no more than `most` bytes and one, which says that there are more.

    Raises
    ------
    RequestError : there is no such file, or it cannot be read.
    """
    try:
        if not path.is_file():
            raise RequestError("no such file", where=str(path))
        with path.open("rb") as file:
            return file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        what = getattr(error, "strerror", None) or str(error)
        raise RequestError(what, where=str(path)) from None


def read_given_text(file: IO[bytes], where: str) -> str:
    """Read a text from an open file, a pipe or a device, which may have no end.

    Raises
    ------
    RequestError : it has more than `MAX_TEXT_BYTES`, is not UTF-8, or cannot be read.
    """
    try:
        data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise RequestError(error.strerror or str(error), where=where) from None
    if len(data) > MAX_TEXT_BYTES:
        what = f"the text has more than {MAX_TEXT_BYTES} bytes"
        raise RequestError(what, where=where, hint="give a part of it")
    return decoded_text(data, where)


def decoded_text(data: bytes, where: str) -> str:
    """Decode UTF-8; raise RequestError naming the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"byte {error.start} is 0x{data[error.start]:02x}: the text is not UTF-8",
            where=where,
            hint="convert it first, for example with iconv",
        ) from None
