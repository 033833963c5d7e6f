"""`cortiq matrix`: reports of `conform` on one page."""

from __future__ import annotations

import click


@click.command("matrix")
@click.argument("reports", nargs=-1, required=True, type=click.Path())
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False), help="The page.")
def matrix(reports: tuple[str, ...], output: str) -> None:
    """Show reports of `conform` side by side on one page.

    REPORTS are files of `conform --json`, from any machines.
    """
    from cortiq_conformance.page import read_reports, write_page

    write_page(read_reports(reports), output)
    click.echo(output)
