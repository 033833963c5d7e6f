"""`cortiq calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cortiq.cli.explain import ONE_RUN
from cortiq.cli.flags import grouped_command, options_of
from cortiq.cli.inputs import MODEL, NewFile, read_text
from cortiq.cli.render import counted, echo, note, print_json, progress_bar
from cortiq.options import LoadOptions, select


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("file")
@click.option(
    "--out", metavar="FILE.json", type=NewFile(),
    help="Write the result to a new file, for `generate --calibration FILE.json`.",
)  # fmt: skip
@click.option(
    "--tokens", default=4096, show_default=True, type=click.IntRange(256),
    help="Tokens of the text that are read at most.",
)  # fmt: skip
@click.option(
    "--window", default=512, show_default=True, type=click.IntRange(2),
    help="Tokens of an independent window.",
)  # fmt: skip
@click.option("--adapter", "-a", metavar="PATH[:SCALE]", default="", help="Take this adapter.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options_of(LoadOptions, only=ONE_RUN)
def calibrate(
    model: str, file: str, out: Path | None, tokens: int, window: int, adapter: str,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Find the temperature at which a model's confidence is calibrated.

    FILE is UTF-8 text, or - for stdin, that the model has not learnt. Every next token of it is
    predicted; the temperature that loses the least is what `generate --calibration` takes. It
    changes the confidence that is reported, and no token.
    """
    from cortiq.explain import calibrate as calibrated
    from cortiq.explain import open_observed

    text = read_text(file)
    with open_observed(model, adapter=adapter, **select(LoadOptions, options)) as run:
        ids = run.source.tokenizer.encode(text, add_bos=False)[:tokens]
        with progress_bar() as bar:
            made = calibrated(
                run, ids, window=window, progress=lambda done, all: bar("Reading", done, all)
            )
    if out is not None:
        made.write(out)
    if made.is_bound:
        note(f"{made.temperature:g} is the end of what is tried: the text fits the model badly")
    if as_json:
        print_json(asdict(made))
        return
    echo(f"temperature {made.temperature:.4f}, of {counted(made.tokens, 'token')}")
    echo(f"accuracy of the most likely token {made.accuracy:.1%}; mean confidence "
         f"{made.confidence:.1%}, at temperature 1 {made.confidence_before:.1%}")  # fmt: skip
    echo(f"expected calibration error {made.error:.4f}, at temperature 1 {made.error_before:.4f}")
    echo(f"nll {made.nll:.6f}, at temperature 1 {made.nll_before:.6f}")
