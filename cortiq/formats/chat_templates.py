"""Chat template and architecture of a model, found without reading its tensors."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

GGUF_KEY = b"tokenizer.chat_template"
ARCHITECTURE = re.compile(rb"GGUF[\s\S]*?general\.architecture\x08\0\0\0([\s\S]{8})")
"""Beginning of a GGUF file, to the length of this text."""
FIRST_BYTES = 1 << 16
CONFIG, FILE = "tokenizer_config.json", "chat_template.jinja"
MOST_BYTES = 64 << 20
"""A key beyond these is not looked for: metadata are at the beginning of a file."""


def has_chat_template(path: Path) -> bool:
    """Return whether a GGUF file or a folder names a chat template; a look, not a verdict.

    A file that cannot be read has none.
    """
    try:
        if path.is_dir():
            config = path / CONFIG
            named = config.is_file() and b'"chat_template"' in config.read_bytes()[:MOST_BYTES]
            parts = sorted(path.glob("*.gguf"))  # the first has the metadata
            return (path / FILE).is_file() or named or any(map(has_chat_template, parts[:1]))
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as seen:
            return seen.find(GGUF_KEY, 0, MOST_BYTES) >= 0
    except (OSError, ValueError):  # ValueError: an empty file
        return False


def gguf_architecture(path: Path) -> str:
    """Return `general.architecture` of a GGUF file, where that is near its beginning; else ""."""
    try:
        with path.open("rb") as file:
            head = file.read(FIRST_BYTES)
    except OSError:
        return ""
    if found := ARCHITECTURE.match(head):
        size = int.from_bytes(found[1], "little")
        return head[found.end() : found.end() + size].decode("utf-8", "replace")
    return ""
