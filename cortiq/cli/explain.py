"""`cortiq explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.atomic import atomic_file
from cortiq.cli.flags import grouped_command, options_of
from cortiq.cli.generate import IDS_HELP, read_prompt
from cortiq.cli.inputs import GIVEN_FILE, MODEL, NewFile, argument_text, token_ids
from cortiq.cli.render import counted, echo, print_json
from cortiq.errors import RequestError
from cortiq.options import LoadOptions, select

if TYPE_CHECKING:
    from cortiq.explain import Explanation, ObservedModel, Parity
    from cortiq.explain.compare import ValueParity

ONE_RUN = (
    "backend", "device", "threads", "context", "weight_format", "lora", "rewrite", "lenient",
    "ignore_unknown_config",
)  # fmt: skip
"""Options of loading that a model takes which is looked into."""


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("text", metavar="[PROMPT]", required=False)
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt, as a flag; - reads stdin.")
@click.option("--ids", metavar="ID,ID,...", help=IDS_HELP)
@click.option(
    "--image", "pictures", type=GIVEN_FILE, multiple=True, metavar="FILE",
    help="An image for the prompt, which comes before it; may be repeated.",
)  # fmt: skip
@click.option("--force", metavar="TEXT", help="A text that follows, whatever the model thinks.")
@click.option("--force-ids", metavar="ID,ID,...", help="The same, as token ids.")
@click.option("--adapter", "-a", metavar="PATH[:SCALE]", default="", help="Take this adapter.")
@click.option(
    "--against", metavar="MODEL", type=MODEL,
    help="Compare with this file of the model, layer by layer.",
)  # fmt: skip
@click.option("--against-backend", metavar="NAME[:DEVICE]", help="Compare with this backend.")
@click.option("--against-adapter", metavar="PATH[:SCALE]", help="Compare with this adapter.")
@click.option(
    "--save", metavar="FILE.npz", type=NewFile(),
    help="Write the rows behind each layer to a new file.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, all sums in it.")
@options_of(LoadOptions, only=ONE_RUN)
def explain(
    model: str, text: str | None, prompt: str | None, ids: str | None,
    pictures: tuple[str, ...], force: str | None, force_ids: str | None, adapter: str,
    against: str | None, against_backend: str | None, against_adapter: str | None,
    save: Path | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Show what a model computes of a text, layer by layer, or where two runs differ.

    Rows behind each layer, the activations of its neurons, how often each expert ran, and the
    probability of the tokens that follow. With --against, --against-backend or --against-adapter
    the same text is computed twice, and the first layer that differs is named; exit code 1 if one
    does.
    """
    from cortiq.explain import explain as explained
    from cortiq.explain import open_observed

    given = read_prompt(prompt, ids, text)
    if force is not None and force_ids is not None:
        raise RequestError("what follows is a text or ids: give either --force or --force-ids")
    forced = [] if force_ids is None else token_ids(force_ids, "--force-ids")
    chosen = select(LoadOptions, options) | ({"images": True} if pictures else {})
    others = (against, against_backend, against_adapter)
    compared = any(other is not None for other in others)
    if compared and (save is not None or force is not None or force_ids is not None):
        what = "--save, --force and --force-ids go with one run, and two are compared"
        raise RequestError(what, where="--against")
    if against_backend == "":
        raise RequestError("names no backend", where="--against-backend")
    with open_observed(model, adapter=adapter, **chosen) as run:
        fed = _fed(run, given, pictures)
        if compared:
            backend = {"backend": against_backend, "device": None} if against_backend else {}
            path = adapter if against_adapter is None else against_adapter
            _compare(run, open_observed(against or model, adapter=path, **chosen | backend), fed,
                     (given, pictures), as_json)  # fmt: skip
            return
        if force is not None:
            given_text = argument_text(force, "--force")
            forced = run.source.tokenizer.encode(given_text, add_bos=False)
        made = explained(run, fed, forced)
        if save is not None:
            _save(run, made, save)
        facts = {"backend": run.backend, "device": run.device, "model": run.name}
        print_json(made.as_object() | facts) if as_json else _show_layers(run, made)


def _fed(run: ObservedModel, given: str | list[int], pictures: tuple[str, ...]) -> list[int]:
    """Return the ids of a prompt, which a run is to have images in."""
    return run.with_images(given, pictures) if pictures else run.ids(given)


def _compare(
    run: ObservedModel, other: ObservedModel, ids: list[int],
    given: tuple[str | list[int], tuple[str, ...]], as_json: bool,
) -> None:  # fmt: skip
    """Show where two runs of what is given differ first; end with 1 if they do."""
    from cortiq.explain import compare

    with other:
        titles = run.title, other.title
        if _fed(other, *given) != ids:
            what = f"{titles[0]} and {titles[1]} make other ids of the prompt"
            raise RequestError(what, where="against", hint="give ids: --ids")
        found = compare(run, other, ids)
    print_json(found.as_object() | {"runs": titles}) if as_json else _show(found, titles)
    if not found.same:
        raise click.exceptions.Exit(1)


def _save(run: ObservedModel, made: Explanation, path: Path) -> None:
    """Write the rows behind every layer, `embed` and the ids."""
    import numpy as np

    names = ["embed", *(layer.value for layer in made.layers)]
    blocks = list(run.rows(made.ids, names))
    rows = {name: np.concatenate([block[name] for block in blocks]) for name in names}
    arrays: Any = {"ids": np.array(made.ids, np.int64), **rows}
    with atomic_file(path) as file:
        np.savez(file, **arrays)


def _word(run: ObservedModel, token: int) -> str:
    """Return a token as people read it."""
    from cortiq.tokenizer.missing import MissingTokenizer

    tokenizer = run.source.tokenizer
    missing = isinstance(tokenizer, MissingTokenizer)
    return str(token) if missing else f"{token} {tokenizer.decode([token])!r}"


def _show_layers(run: ObservedModel, made: Explanation) -> None:
    echo(f"{run.title}: {counted(len(made.ids), 'token')}")
    echo("layer         rms     max |x|  |change|/|x|")
    for layer in made.layers:
        echo(f"{layer.layer:5}  {layer.rms:10.4g}  {layer.largest:10.4g}  {layer.change:12.3f}")
    for name, sums in made.neurons.items():
        largest = f"the top 10% of neurons have {sums.share_of_largest():.0%} of all |activation|"
        echo(f"{name}: {largest}")
        if len(sums.runs):
            echo(f"  rows of each expert: {' '.join(map(str, sums.runs.tolist()))}")
    for one in made.following:
        line = f"after token {one.position}: {_word(run, one.best)} p={one.probability:.4f}"
        if one.forced is not None:
            forced = f"{_word(run, one.forced)} p={one.forced_probability:.4f}"
            line += f"; forced {forced}, rank {one.rank}"
        echo(line)


def _show(found: Parity, titles: tuple[str, str]) -> None:
    echo(" against ".join(titles))
    if found.first is None:
        echo("the same bits after every layer")
    else:
        echo("value           rows  relative     largest")
        for one in found.layers:
            echo(_parity_line(one))
        echo(f"first: {_place(found.first)}")
        if found.inside is not None and found.inside.value != found.first.value:
            echo(f"inside of it: {_place(found.inside)}")
    if found.nll is not None:
        echo(f"nll {found.nll[0]:.6f} and {found.nll[1]:.6f}; {found.same_best:.1%} of the most "
             "likely tokens are the same")  # fmt: skip


def _parity_line(one: ValueParity) -> str:
    return f"{one.value:14}  {one.rows:4}  {one.relative:8.2e}  {one.largest:10.4g}"


def _place(one: ValueParity) -> str:
    return f"{one.value}, row {one.first_row}, relative {one.relative:.2e}"
