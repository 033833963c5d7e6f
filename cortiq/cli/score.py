"""`cortiq score`."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from cortiq.cli.flags import ADAPTERS, grouped_command, options_of
from cortiq.cli.generate import load_model
from cortiq.cli.inputs import MODEL, read_text
from cortiq.cli.render import counted, echo, print_json, progress_bar
from cortiq.options import LoadOptions, ScoreOptions, resolve, select


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, every token in it.")
@options_of(ScoreOptions, LoadOptions, without=ADAPTERS)
def score(model: str, file: str, as_json: bool, **options: Any) -> None:
    """Score a text: perplexity, with its standard error.

    FILE is UTF-8 text, or - for stdin. It is tokenised without a start token and cut into
    independent windows; every next token is scored.
    """
    chosen = select(ScoreOptions, options)
    resolve(ScoreOptions, chosen)  # reports a bad option before a model is opened
    text = read_text(file)
    with load_model(model, options) as opened, progress_bar() as bar:
        made = opened.score(text, progress=lambda done, all: bar("Scoring", done, all), **chosen)
        facts = {
            "backend": opened.backend,
            "device": opened.device,
            "model_hash": opened.model_hash,
            "fingerprint": opened.fingerprint,
        }
    if as_json:
        print_json(dataclasses.asdict(made) | facts)
        return
    echo(f"perplexity {made.perplexity:.4f} ± {made.standard_error:.4f}")
    bos = "with" if made.bos else "without"
    echo(f"nll {made.nll:.6f} over {counted(made.tokens, 'token')}")
    windows = counted(made.windows, "window")
    echo(f"{windows} of {made.window} tokens, {bos} start token")
    if made.unscored:
        echo(f"{counted(made.unscored, 'token')} at the end not scored")
