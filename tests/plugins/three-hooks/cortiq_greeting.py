"""A command of its own: `cortiq greet NAME`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from cortiq.hookspecs import hookimpl


@click.command()
@click.argument("name")
def greet(name: str) -> None:
    """Greet somebody."""
    click.echo(f"hello, {name}")


@hookimpl
def cortiq_commands() -> Sequence[click.Command]:
    """The command of this package."""
    return [greet]
