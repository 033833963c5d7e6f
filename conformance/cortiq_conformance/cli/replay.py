"""`cortiq replay`: run a failed case again."""

from __future__ import annotations

import click


@click.command("replay")
@click.argument("file", type=click.Path())
@click.option("--backend", "-b", metavar="NAME[:DEVICE]", help="Another backend than the file's.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder for another replay file.")
def replay(file: str, backend: str | None, out: str | None) -> None:
    """Run a failed case of `conform` again, from its file.

    `conform --out DIR` leaves such a file for each difference. Exit code 1 if there still is one.
    """
    from cortiq_conformance.replay import replay as again
    from cortiq_conformance.report import CaseOutcome

    result = again(file, backend, out)
    click.echo(f"{result.outcome.value}: {result.case.id}\n  {result.reason or 'same bits'}")
    if result.replay:
        click.echo(f"  replay: {result.replay}")
    if result.outcome is not CaseOutcome.SAME:
        raise click.exceptions.Exit(1)
