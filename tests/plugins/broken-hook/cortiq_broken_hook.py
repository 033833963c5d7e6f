"""Its hook is misspelt; its other hook is sound, and must not be let in either."""

from __future__ import annotations

from cortiq.hookspecs import hookimpl


@hookimpl
def cortiq_backend() -> list:
    """There is no such hook."""
    return []


@hookimpl
def cortiq_commands() -> list:
    """A command."""
    import click

    return [click.Command("leaked")]
