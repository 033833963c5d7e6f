"""Pointers of Git LFS: what a clone without its large files has in their place."""

from __future__ import annotations

import re
from pathlib import Path

from cortiq.errors import FormatError

LONGEST = 1024
"""Bytes of a pointer at most, by its specification."""
BEGIN = b"version https://git-lfs.github.com/spec/"
_SIZE = re.compile(rb"^size (\d{1,18})$", re.MULTILINE)


def refuse_pointer(path: Path, head: bytes) -> None:
    """Raise FormatError for a file that is a pointer and not what it points to.

    Parameters
    ----------
    head : the beginning of the file, `LONGEST` bytes of it.
    """
    if not head.startswith(BEGIN):
        return
    size = _SIZE.search(head)
    named = f" to a file of {int(size[1])} bytes" if size else ""
    raise FormatError(
        f"is a Git LFS pointer{named}, not the file itself",
        where=str(path),
        hint="fetch it with `git lfs pull` in the clone, or download it from the hub",
    )
