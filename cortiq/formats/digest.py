"""Digests of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(paths: Iterable[Path]) -> str:
    """Return the SHA-256, in hex, of the lines `name NUL sha256 LF` of files, sorted by path."""
    lines = (f"{path.name}\0{file_sha256(path)}\n" for path in sorted(paths))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
