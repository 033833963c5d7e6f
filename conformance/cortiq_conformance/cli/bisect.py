"""`cortiq bisect`: the first node of a model on which two backends differ."""

from __future__ import annotations

import json

import click


@click.command("bisect")
@click.argument("model")
@click.option("--backend", "-b", metavar="NAME[:DEVICE]", help="The backend to check.")
@click.option(
    "--against", metavar="NAME[:DEVICE]", default="reference", show_default=True,
    help="The backend to compare with.",
)  # fmt: skip
@click.option("--prompt", "-p", help="A text to run; by default ids from a formula.")
@click.option(
    "--tokens", type=click.IntRange(1), default=33, show_default=True,
    help="Ids to run at most.",
)  # fmt: skip
@click.option("--chunk", type=click.IntRange(0), default=0, help="Rows at a time; 0 for all.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bisect(
    model: str,
    backend: str | None,
    against: str,
    prompt: str | None,
    tokens: int,
    chunk: int,
    as_json: bool,
) -> None:
    """Find the first node of a model on which two backends differ.

    Layers are compared by the digests of their outputs; inside the first that differs, every value
    is compared bit by bit. Exit code 1 if the backends differ.
    """
    from cortiq_conformance.bisect import bisect as search
    from cortiq_conformance.bisect import ids_of

    found = search(model, backend, against, ids_of(model, prompt, tokens), chunk)
    click.echo(json.dumps(found.as_dict(), ensure_ascii=False) if as_json else found.sentence())
    if found.divergence is not None:
        raise click.exceptions.Exit(1)
