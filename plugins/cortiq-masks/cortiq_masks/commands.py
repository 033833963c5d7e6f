"""`cortiq mask`: masks from texts, their algebra, and smaller models."""

from __future__ import annotations

from pathlib import Path

import click

from cortiq.cli.inputs import FILE, MODEL, OUT
from cortiq.cli.render import byte_count, echo, note, print_table
from cortiq.errors import RequestError
from cortiq_masks.notice import NOTICE


@click.group(no_args_is_help=True)
def mask() -> None:
    """Make and combine masks of neurons.

    `cortiq generate MODEL --adapter NAME=FILE.mask` runs a model with one.
    """
    note(NOTICE)


@mask.command()
@click.argument("model", type=MODEL)
@click.argument("out", type=OUT)
@click.option("--text", type=FILE, required=True, help="A text of the task.")
@click.option("--keep", type=click.FloatRange(0.0, 1.0, min_open=True), default=0.5,
              show_default=True, help="Share of each layer's neurons that stay open.")  # fmt: skip
@click.option("--align", type=click.IntRange(1), default=1, show_default=True,
              help="Open neurons of a layer are a multiple of this.")  # fmt: skip
@click.option("--by", type=click.Choice(["magnitude", "square", "hits"]), default="magnitude",
              show_default=True, help="What of the activations counts.")  # fmt: skip
@click.option("--top", type=click.IntRange(1), default=64, show_default=True,
              help="Of hits: so many largest activations of a row.")  # fmt: skip
@click.option("--mean-fill", is_flag=True, help="Closed neurons give their mean instead of 0.")
@click.option("--tokens", type=click.IntRange(1), default=4096, show_default=True,
              help="Most tokens of the text that are read.")  # fmt: skip
@click.option("--backend", "-b", help="Backend that reads the text.")
def make(
    model: str, out: Path, text: Path, keep: float, align: int, by: str, top: int, mean_fill: bool,
    tokens: int, backend: str | None,
) -> None:  # fmt: skip
    """Keep the neurons that matter most in a text; write a mask to OUT."""
    from cortiq.engine.prompt_encoded import check_encoded
    from cortiq.model.source import open_source
    from cortiq.options import LoadOptions
    from cortiq_masks.files import write_mask
    from cortiq_masks.statistics import mask_of, neuron_statistics

    _check_out(out)
    source = open_source(model, LoadOptions())
    try:
        check_encoded(None, source.program)
        ids = source.tokenizer.encode(text.read_text(), add_bos=False)[:tokens]
        found = neuron_statistics(source, ids, top=top if by == "hits" else 0, backend=backend)
        means = found.means() if mean_fill else None
        made = mask_of(out.stem, getattr(found, by), keep, align=align, means=means)
    finally:
        source.close()
    write_mask(out, made)
    widths = {layer: len(mass) for layer, mass in found.magnitude.items()}
    echo(f"{out}: {100 * made.sparsity(widths):.1f}% of neurons closed, from {found.rows} tokens")


@mask.command(name="import")
@click.argument("model", type=FILE)
@click.argument("task")
@click.argument("out", type=OUT)
def import_(model: Path, task: str, out: Path) -> None:
    """Write the mask of a TASK of a CMF file to OUT."""
    from cortiq_masks.files import cmf_masks, write_mask

    _check_out(out)
    masks = cmf_masks(model)
    if task not in masks:
        what = f"has no mask of a task {task!r}"
        raise RequestError(what, where=str(model), hint=f"there are: {', '.join(masks)}")
    write_mask(out, masks[task])
    echo(str(out))


@mask.command()
@click.argument("one", type=FILE)
@click.argument("other", type=FILE)
@click.argument("out", type=OUT)
@click.option("--intersection", is_flag=True, help="Close what is closed in either.")
def join(one: Path, other: Path, out: Path, intersection: bool) -> None:
    """Open what is open in either of two masks; write that to OUT."""
    from cortiq_masks import mask as algebra
    from cortiq_masks.files import read_mask, write_mask

    _check_out(out)
    how = algebra.intersection if intersection else algebra.union
    write_mask(out, how(read_mask(one), read_mask(other)))
    echo(str(out))


@mask.command()
@click.argument("one", type=FILE)
@click.argument("other", type=FILE)
def diff(one: Path, other: Path) -> None:
    """Show in which layers two masks differ."""
    from cortiq_masks.files import read_mask
    from cortiq_masks.mask import difference

    found = difference(read_mask(one), read_mask(other))
    rows = [(str(i), f"+{d.added}", f"-{d.removed}", "differ" if d.heads else "",
             "differs" if d.gate else "") for i, d in found.items()]  # fmt: skip
    if rows:
        print_table(("layer", "opened", "closed", "heads", "layer left out"), rows)
    else:
        echo("the same is open")


@mask.command()
@click.argument("model", type=MODEL)
@click.argument("file", type=FILE)
@click.argument("out", type=OUT)
@click.option("--refit", "text", type=FILE, help="Refit what is left to this text.")
@click.option("--tokens", type=click.IntRange(1), default=4096, show_default=True,
              help="Most tokens of the text that are read.")  # fmt: skip
@click.option("--backend", "-b", help="Backend that reads the text.")
def prune(
    model: str, file: Path, out: Path, text: Path | None, tokens: int, backend: str | None
) -> None:
    """Write a MODEL without the neurons that a mask closes to the folder OUT."""
    from cortiq.model.source import open_source
    from cortiq.options import LoadOptions
    from cortiq_masks.files import read_mask
    from cortiq_masks.pruning import prune_model
    from cortiq_masks.refit import refit, support_of

    sums = None
    if text is not None:
        source = open_source(model, LoadOptions())
        try:
            ids = source.tokenizer.encode(text.read_text(), add_bos=False)[:tokens]
            sums = refit(source, ids, support_of(read_mask(file)), backend=backend)
        finally:
            source.close()
    made = prune_model(model, file, out, refit=sums)
    for line in made.notes:
        note(line)
    echo(f"{made.path}: {byte_count(made.nbytes)}")


def _check_out(out: Path) -> None:
    from cortiq_masks.files import SUFFIX

    if out.suffix != SUFFIX:
        raise RequestError(f"a mask's file ends in {SUFFIX}", where=str(out))
