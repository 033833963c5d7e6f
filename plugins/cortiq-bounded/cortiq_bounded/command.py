"""`cortiq sinks`: a file of sinks from rows of a text."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model")
@click.argument("text")
@click.option("--count", default=4, show_default=True, type=click.IntRange(1, 1024), help="Sinks.")
@click.option("--layers", default="all", show_default=True, help="all, deepN, or as 0+2+5.")
@click.option(
    "--output", "-o", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="The safetensors file to write.",
)  # fmt: skip
def sinks(model: str, text: str, count: int, layers: str, output: Path) -> None:
    """Write sinks for --rewrite swa_sink_v1: keys and values of the first rows of TEXT in MODEL."""
    from cortiq_bounded.sinks import write_sinks

    written = write_sinks(model, text, count, layers, output)
    click.echo(f"{written} sinks of each layer in {output}")
