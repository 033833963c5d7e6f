"""`cortiq rm`."""

from __future__ import annotations

import click

from cortiq.cli.inputs import CACHED
from cortiq.cli.render import byte_count, echo
from cortiq.errors import RequestError


@click.command()
@click.argument("names", nargs=-1, metavar="NAME...", type=CACHED)
@click.option("--unfinished", is_flag=True, help="Remove interrupted downloads.")
@click.option("--kept", is_flag=True, help="Remove kept weights; they are packed anew.")
def rm(names: tuple[str, ...], unfinished: bool, kept: bool) -> None:
    """Remove models from the cache.

    NAME is a model that `cortiq list` shows.
    """
    from cortiq.formats.fetch import remove, remove_partial
    from cortiq.formats.kept_folder import remove_kept

    if not names and not unfinished and not kept:
        raise RequestError("needs the name of a model, --unfinished or --kept", where="rm")
    for name in names:
        freed = remove(name)
        echo(f"{name}: {byte_count(freed)} freed")
    if unfinished:
        echo(f"unfinished: {byte_count(remove_partial())} freed")
    if kept:
        echo(f"kept weights: {byte_count(remove_kept())} freed")
