"""Questions about a model's name, asked at a terminal: the file, and whether to trust a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import click

from cortiq.cli.render import byte_count, echo, note, progress_bar
from cortiq.errors import SeveralModelsError, UntrustedError

Made = TypeVar("Made")


def answering(name: str, use: Callable[[str], Made]) -> Made:
    """Return `use(name)`; where the name says too little, ask at a terminal and use the answer.

    Raises
    ------
    SeveralModelsError, UntrustedError : there is no terminal, or no answer.
    """
    while True:
        try:
            return use(name)
        except SeveralModelsError as error:
            name = _chosen(error)
        except UntrustedError as error:
            _trust(name, error)


def fetched(name: str) -> str:
    """Fetch a model unless it is there; return its name, a more exact one if somebody was asked."""
    from cortiq.formats import fetch

    def use(one: str) -> str:
        if fetch.is_fetched(one) and fetch.cached(one) is None:
            with progress_bar(in_bytes=True) as bar:
                fetch.pull(one, progress=bar)
        return one

    return answering(name, use)


def _asks() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _chosen(error: SeveralModelsError) -> str:
    """Ask which model is meant; return its name."""
    if not _asks() or not error.choices:
        raise error
    note(f"{error.where}: {error.what}")
    for number, (name, size) in enumerate(error.choices, 1):
        note(f"{number:3}  {name}  {byte_count(size)}")
    numbers = click.IntRange(1, len(error.choices))
    return error.choices[click.prompt("Which one", type=numbers, err=True) - 1][0]


def _trust(name: str, error: UntrustedError) -> None:
    """Ask whether a server is trusted; if so, fetch the file and remember its hash."""
    from cortiq.formats import fetch, url

    if not _asks():
        raise error
    question = "There is no hash to verify it by. Fetch it and remember its hash from now on?"
    echo(name, err=True)
    if not click.confirm(question, err=True):
        raise error
    with progress_bar(in_bytes=True) as bar:
        fetch.pull(name, progress=bar, trust=True)
    note(f"remembered: {url.parse(name).name}")
