"""Files that callers name: read whole, within a limit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from cortiq.errors import RequestError

MOST_LETTERS = 100
"""Most letters of an address that an error shows."""
MAX_TEXT_BYTES = 256 << 20
"""Most bytes of a text that is scored or learnt from."""


def check_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file, which may be unreadable.

    Raises
    ------
    RequestError : it is an address or a folder, or there is no such file.
    """
    name = os.fspath(path)
    if "://" in name or name.startswith("data:"):
        hint = "fetch it first (curl -O ADDRESS), and name the file"
        raise RequestError("an address, not a file", where=name[:MOST_LETTERS], hint=hint)
    try:
        found = Path(name)
        if found.is_dir():
            raise RequestError("a folder, not a file", where=name, hint="name a file in it")
        if not found.is_file():
            hint = "" if found.is_absolute() else f"the path is relative to {Path.cwd()}"
            raise RequestError("no such file", where=name, hint=hint)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        what = getattr(error, "strerror", None) or str(error)
        raise RequestError(what, where=name) from None
    return found


def read_given(path: str | os.PathLike[str], most: int) -> bytes:
    """Read a file, but no more than `most` bytes and one, which says that there are more.

    Raises
    ------
    RequestError : there is no such file, or it cannot be read.
    """
    try:
        with check_file(path).open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise RequestError(error.strerror or str(error), where=str(path)) from None


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
