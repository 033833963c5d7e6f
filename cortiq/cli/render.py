"""Terminal output: tables, progress bars, numbers. Only results go to stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cortiq.errors import CONTROL, printable, printable_json

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

BAR_DELAY = 1.0
"""Seconds before a progress bar appears."""


CONTROL_REPLACEMENTS = dict.fromkeys(CONTROL, "\ufffd")


def echo(text: object = "", *, err: bool = False) -> None:
    """Print text; control characters from names and files are escaped."""
    click.echo(printable(str(text)), err=err)


def echo_piece(text: str) -> None:
    """Print a piece of a model's text, without control characters on a terminal."""
    click.echo(text.translate(CONTROL_REPLACEMENTS) if sys.stdout.isatty() else text, nl=False)


def note(sentence: str) -> None:
    """Print a remark on stderr."""
    echo(sentence, err=True)


def counted(number: int, word: str) -> str:
    """Return a number and a noun, in the plural unless there is one."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def print_json(value: Any) -> None:
    """Print one JSON object on one line."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    click.echo(printable_json(text))


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, whole: bool = False
) -> None:
    """Print a table: its columns stand in line, and a terminal's width folds long cells.

    Parameters
    ----------
    whole : keep each row on one line, however narrow the terminal is, so that names can be copied.
    """
    if not sys.stdout.isatty():
        lines = [[" ".join(printable(cell).split()) for cell in row] for row in (headings, *rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell.ljust(wide) for cell, wide in zip(line, widths, strict=True))
            echo("  ".join(cells).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    listed = list(rows)
    for row in listed:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console()
    if whole:
        needed = max(sum(len(cell) + 2 for cell in row) for row in (headings, *listed))
        console.width = max(console.width, needed + sum(map(len, headings)))
    console.print(table)


class ProgressBar:
    """A progress bar on stderr, if that is a terminal and the work takes more than a second.

    Called with an activity, the amount done, and the total; with a total of 0 the activity is a
    sentence, which is printed at once, terminal or not. Without a terminal a bar of bytes (a
    download) is one line, so that nobody waits for what is not said.

    Parameters
    ----------
    in_bytes : whether amounts are bytes.
    starting : called before something is written.
    """

    def __init__(self, in_bytes: bool, starting: Callable[[], None] = lambda: None) -> None:
        self._starting = starting
        self._started = time.monotonic()
        self._in_bytes = in_bytes
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._said = False

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show the progress."""
        if total == 0:
            self._starting()
            note(what)
            return
        if self._bar is None and self._due(done, total):
            self._begin(what, total)
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task(printable(what), total=total)
        self._bar.update(self._task, description=printable(what), completed=done, total=total)

    def _due(self, done: int, total: int) -> bool:
        waited = time.monotonic() - self._started >= BAR_DELAY
        return waited and done < total and not self._said

    def _begin(self, what: str, total: int) -> None:
        self._said = True
        if sys.stderr.isatty():
            self._starting()
            self._bar = _new_bar(self._in_bytes)
            self._bar.start()
        elif self._in_bytes:
            note(f"{what}: {byte_count(total)}")

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
            self._said = False
            self._started = time.monotonic()


@contextmanager
def loading_line(name: str) -> Iterator[Callable[[], None]]:
    """Say on a terminal's stderr that a model is being loaded, until the end.

    It yields a function that takes the line away earlier, for whoever writes there next.
    """
    shown = sys.stderr.isatty()

    def clear() -> None:
        nonlocal shown
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
        shown = False

    if shown:
        click.echo(printable(f"Loading {name} ..."), nl=False, err=True)
    try:
        yield clear
    finally:
        clear()


def _new_bar(in_bytes: bool) -> RichProgress:
    from rich import progress
    from rich.console import Console

    amount = progress.DownloadColumn() if in_bytes else progress.MofNCompleteColumn()
    title = progress.TextColumn("{task.description}", markup=False)
    columns = (title, progress.BarColumn(), amount)
    remaining = progress.TimeRemainingColumn()
    return progress.Progress(*columns, remaining, console=Console(stderr=True), transient=True)


@contextmanager
def progress_bar(
    *, in_bytes: bool = False, starting: Callable[[], None] = lambda: None
) -> Iterator[ProgressBar]:
    """Yield a `ProgressBar` that is removed at the end."""
    bar = ProgressBar(in_bytes, starting)
    try:
        yield bar
    finally:
        bar.stop()


def byte_count(number: float) -> str:
    """Return a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError("unreachable")
