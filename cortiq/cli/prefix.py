"""`cortiq prefix`."""

from __future__ import annotations

from typing import Any

import click

from cortiq.cli.flags import options_of
from cortiq.cli.generate import first_adapter, load_model, read_prompt
from cortiq.cli.inputs import MODEL
from cortiq.cli.render import echo, print_json
from cortiq.options import LoadOptions


@click.group()
def prefix() -> None:
    """Store a computed prompt prefix in a file, for any backend.

    `cortiq generate MODEL --prefix FILE -p ...` reuses it for a prompt that begins with it.
    """


@prefix.command()
@click.argument("model", type=MODEL)
@click.argument("file")
@click.option("-p", "--prompt", metavar="TEXT", help="The text; - reads stdin.")
@click.option("--ids", metavar="ID,ID,...", help="Token ids instead of a text.")
@options_of(LoadOptions)
def save(model: str, file: str, prompt: str | None, ids: str | None, **options: Any) -> None:
    """Compute a text's rows and write them to FILE."""
    given = read_prompt(prompt, ids)
    with load_model(model, options) as opened:
        tokens = opened.save_prefix(given, file, adapter=first_adapter(options))
    echo(f"{tokens} tokens in {file}")


@prefix.command()
@click.argument("model", type=MODEL)
@click.argument("file")
@click.option("--check", is_flag=True, help="Recompute it and compare every bit.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, every id in it.")
@options_of(LoadOptions)
def load(model: str, file: str, check: bool, as_json: bool, **options: Any) -> None:
    """Check that FILE can be continued from: the model, the contract, every value, this backend.

    Without --check it is not verified that the model computes these values from its tokens.
    """
    with load_model(model, options) as opened:
        ids = opened.load_prefix(file, check=check, adapter=first_adapter(options))
        text = "" if opened.tokenizer.absent else opened.tokenizer.decode(ids)
        where = f"{opened.backend}:{opened.device}"
    if as_json:
        print_json({"tokens": len(ids), "token_ids": ids, "text": text, "backend": where})
        return
    same = ", identical when recomputed" if check else ""
    echo(f"{len(ids)} tokens, loaded on {where}{same}")
