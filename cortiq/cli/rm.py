"""`cortiq rm`."""

from __future__ import annotations

import click

from cortiq.cli.inputs import CACHED
from cortiq.cli.render import byte_count, echo
from cortiq.errors import RequestError


@click.command()
@click.argument("names", nargs=-1, metavar="NAME...", type=CACHED)
@click.option("--unfinished", is_flag=True, help="Remove interrupted downloads.")
def rm(names: tuple[str, ...], unfinished: bool) -> None:
    """Remove models from the cache.

    NAME is a model that `cortiq list` shows.
    """
    from cortiq.formats.fetch import remove, remove_partial

    if not names and not unfinished:
        raise RequestError("needs the name of a model, or --unfinished", where="rm")
    for name in names:
        freed = remove(name)
        echo(f"{name}: {byte_count(freed)} freed")
    if unfinished:
        echo(f"unfinished: {byte_count(remove_partial())} freed")
