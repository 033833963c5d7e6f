"""Texts and small values as the command line gives them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cortiq.errors import RequestError

STDIN = "-"


def read_text(place: str) -> str:
    """The text of a file, or of stdin for `-`; RequestError when it is not UTF-8 or not there."""
    if place == STDIN:
        return decode(sys.stdin.buffer.read(), "stdin")
    try:
        return decode(Path(place).read_bytes(), place)
    except OSError as error:
        raise RequestError(error.strerror or str(error), where=place) from None


def decode(data: bytes, where: str) -> str:
    """Bytes as UTF-8; RequestError that says where they are not."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"byte {error.start} is 0x{data[error.start]:02x}: the text is not UTF-8",
            where=where,
            hint="convert it first, for example with iconv",
        ) from None


def template_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`NAME=JSON` pairs as a mapping."""
    options = {}
    for pair in pairs:
        name, found, text = pair.partition("=")
        try:
            options[name] = json.loads(text)
        except json.JSONDecodeError:
            found = ""
        if not found or not name:
            hint = "for example: enable_thinking=false, or name='\"a text\"'"
            raise RequestError(f"{pair!r} is not NAME=JSON", where="--template-option", hint=hint)
    return options
