"""`cortiq requant`."""

from __future__ import annotations

from pathlib import Path

import click

from cortiq.cli.flags import grouped_command, options_of
from cortiq.cli.inputs import MODEL
from cortiq.cli.render import byte_count, echo, note, progress_bar
from cortiq.options import LoadOptions, resolve

KINDS = ("q4tp", "q4tp-quantize", "q2tp-draft")


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--kind", type=click.Choice(KINDS), default="q4tp", show_default=True,
    help="q4tp: matrices in q4_tiled and q4_block. q4tp-quantize: those of floats, but for tables, "
    "heads and routers. q2tp-draft: of a draft head's experts, gate and up in q4tp become q2tp.",
)  # fmt: skip
@options_of(LoadOptions, only=("lenient",))
def requant(model: str, out: Path, kind: str, lenient: bool | None) -> None:
    """Quantise some matrices of a CMF file again; the others keep their bytes.

    OUT is a new CMF file. Prints the path.
    """
    from cortiq.convert.requant import requantise

    strict = not resolve(LoadOptions, {"lenient": lenient}).lenient
    with progress_bar(in_bytes=True) as bar:
        made, changed = requantise(model, out, kind, bar, strict)
    note(f"{changed} matrices are encoded anew")
    for layout, size in sorted(made.layouts.items(), key=lambda pair: -pair[1]):
        note(f"{layout}: {byte_count(size)}")
    echo(made.path)
