"""`cortiq new-backend`: write a backend's package, ready to be filled in."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("new-backend")
@click.argument("name")
@click.option(
    "--into", type=click.Path(file_okay=False), default=".", show_default=True,
    help="Folder in which cortiq-NAME is made.",
)  # fmt: skip
@click.option("--all-stubs", is_flag=True, help="Write a function to fill for every operator.")
def new_backend(name: str, into: str, all_stubs: bool) -> None:
    """Write the package of a new backend.

    Its tests pass as generated, since the reference computes everything; replace kernel by kernel.
    """
    from cortiq_conformance.scaffold import write_backend

    files = write_backend(name, Path(into), all_stubs)
    for file in files:
        click.echo(str(file))
    folder = Path(into) / f"cortiq-{name}"
    click.echo(f"next: cd {folder}; pip install -e '.[test]'; cortiq conform -b {name} --level 0")
