"""Parsing of texts and small values from the command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from cortiq.arguments import path_of
from cortiq.errors import RequestError, shown

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

STDIN = "-"
MAX_DIGITS = 18
"""Most digits of a token id."""


class ModelName(click.ParamType):
    """The name of a model, with shell completion.

    Parameters
    ----------
    cached : complete only cached models; otherwise known names and files, too.
    """

    name = "text"

    def __init__(self, *, cached: bool = False) -> None:
        self._cached = cached

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; raise ModelNotFoundError, before anything is imported for it."""
        if not self._cached:
            from cortiq.formats.fetch import check_there

            check_there(value)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return names that start with `incomplete`, and files."""
        from click.shell_completion import CompletionItem

        from cortiq.formats.fetch import HUB_MODELS, KNOWN_MODELS, list_cached

        there = list_cached()
        names = list(there if self._cached else {**KNOWN_MODELS, **HUB_MODELS, **there})
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        # Files come first: on meeting them bash's function forgets what it has found until then.
        return found if self._cached else [CompletionItem(incomplete, type="file"), *found]


MODEL, CACHED = ModelName(), ModelName(cached=True)
FILE, OUT = click.Path(exists=True, dir_okay=False, path_type=Path), click.Path(path_type=Path)
"""A file that is read, and a path that is written."""


class GivenFile(click.Path):
    """A file that is read later; what is no file is an error before a model is opened."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path as it was given; raise RequestError."""
        from cortiq.formats.given_files import check_file

        check_file(value)
        return value


GIVEN_FILE = GivenFile()


class NewFile(click.ParamType):
    """A file that is written at the end, checked before anything is computed for it."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raise RequestError if it is there already, or its folder is not."""
        where = param.opts[0] if param is not None else "file"
        path = path_of(value, where)
        if not path.name:
            raise RequestError("names no file", where=where)
        if os.path.lexists(path):
            hint = "name another, or remove it"
            raise RequestError("is there already", where=str(path), hint=hint)
        if not os.access(path.parent, os.W_OK | os.X_OK) or not path.parent.is_dir():
            what = f"no file can be made in {str(path.parent)!r}"
            raise RequestError(what, where=str(path), hint="name a folder that you may write to")
        return path


def read_text(place: str) -> str:
    """Read a text file, or stdin for `-`; raise RequestError if it is missing, too long or not
    UTF-8.
    """
    from cortiq.formats.given_files import read_given_text

    where = "stdin" if place == STDIN else place
    if place == STDIN:
        return read_given_text(_stdin(), where)
    try:
        with Path(place).open("rb") as file:
            return read_given_text(file, where)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise RequestError(getattr(error, "strerror", None) or str(error), where=where) from None


def stdin_text() -> str:
    """Read stdin minus one trailing newline, which `echo` and editors add."""
    text = read_text(STDIN)
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def at_terminal() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def piped_text() -> str | None:
    """Return the text on stdin, or None if stdin is a terminal, closed, or empty."""
    if sys.stdin is None or at_terminal():
        return None
    return stdin_text() or None


def _stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise RequestError("is closed: there is nothing to read", where="stdin")
    return sys.stdin.buffer


def argument_text(text: str, where: str) -> str:
    """Return an argument's text, decoded as UTF-8 whatever the locale is.

    Bytes that the locale does not know arrive as lone surrogates (PEP 383).
    """
    return decode(text.encode("utf-8", "surrogateescape"), where)


def decode(data: bytes, where: str) -> str:
    """Decode UTF-8; raise RequestError naming the first invalid byte."""
    from cortiq.formats.given_files import decoded_text

    return decoded_text(data, where)


def token_ids(text: str, where: str = "--ids") -> list[int]:
    """Parse the token ids of a flag: integers separated by commas or blanks."""
    words = text.replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS):
            hint = f"for example: {where} 1,15,7"
            raise RequestError(f"{shown(word)} is not a token id", where=where, hint=hint)
    if not words:
        raise RequestError("there are no token ids", where=where)
    return [int(word) for word in words]


def template_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse `NAME=JSON` pairs."""
    options = {}
    where = "--template-option"
    for pair in pairs:
        name, found, text = argument_text(pair, where).partition("=")
        try:
            options[name] = json.loads(text)
        except (ValueError, RecursionError):
            found = ""
        if not found or not name:
            hint = "for example: enable_thinking=false, or name='\"a text\"'"
            raise RequestError(f"{shown(pair)} is not NAME=JSON", where=where, hint=hint)
    return options
