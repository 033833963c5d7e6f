"""Git LFS pointers, which a clone has in place of large files that were not fetched."""

from __future__ import annotations

import re
from pathlib import Path

from cortiq.errors import FormatError

MAX_POINTER_BYTES = 1024
"""Largest size of a pointer in bytes, by its specification."""
POINTER_START = b"version https://git-lfs.github.com/spec/"
_SIZE = re.compile(rb"^size (\d{1,18})$", re.MULTILINE)


def refuse_pointer(path: Path, head: bytes) -> None:
    """Raise FormatError if a file is a Git LFS pointer.

    Parameters
    ----------
    head : the beginning of the file, `MAX_POINTER_BYTES` bytes of it.
    """
    if not head.startswith(POINTER_START):
        return
    size = _SIZE.search(head)
    named = f" to a file of {int(size[1])} bytes" if size else ""
    raise FormatError(
        f"is a Git LFS pointer{named}, not the file itself",
        where=str(path),
        hint="fetch it with `git lfs pull` in the clone, or download it from the hub",
    )
