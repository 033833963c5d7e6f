"""Files that callers name: read whole, within a limit."""

from __future__ import annotations

from pathlib import Path

from cortiq.errors import RequestError


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
