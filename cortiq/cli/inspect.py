"""`cortiq inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import ADAPTERS, grouped_command, options_of
from cortiq.cli.inputs import MODEL
from cortiq.cli.render import byte_count, echo, note, print_table, progress_bar
from cortiq.errors import FormatError, RequestError
from cortiq.options import LoadOptions, resolve

if TYPE_CHECKING:
    from cortiq.model.source import ModelSource


@grouped_command()
@click.argument("model", required=False, type=MODEL)
@click.option("--families", is_flag=True, help="List families and architectures.")
@click.option("--full", is_flag=True, help="Show every node; by default equal blocks are folded.")
@click.option(
    "--check", is_flag=True,
    help="Read every weight: check for NaN and infinity and, of converted folders, the hashes.",
)  # fmt: skip
@click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False),
    help="Draw the graph, the geometry and the bytes by format, as a page of one file.",
)  # fmt: skip
@options_of(LoadOptions, without=ADAPTERS)
def inspect(
    model: str | None, families: bool, full: bool, check: bool, html: str | None, **options: Any
) -> None:
    """Show a model's graph, and which backend computes each node.

    Of a CMF file, what it holds is listed first (with --full, every tensor), also where cortiq does
    not run its family. With --backend the model is also compiled for it, to show how many nodes it
    computes and why it declines the others. Nothing is generated; --check reads all weights.
    """
    if families:
        _print_families()
    elif model is None:
        raise RequestError("name a model, or use --families", where="inspect")
    if model is not None:
        _inspect(model, resolve(LoadOptions, options), full, check, html, options)


def _print_families() -> None:
    from cortiq.models.registry import describe_families
    from cortiq.plugins import default_plugins

    rows = [
        (info.name, ", ".join(info.architectures), ", ".join(info.gguf))
        for info in describe_families(default_plugins().families)
    ]
    print_table(("family", "architectures", "in GGUF"), rows)


def _inspect(
    model: str,
    chosen: LoadOptions,
    full: bool,
    check: bool,
    html: str | None,
    given: dict[str, Any],
) -> None:
    from cortiq.cli.container_contents import print_contents
    from cortiq.ir.printer import print_program
    from cortiq.model.source import open_source

    print_contents(model, full, not chosen.lenient)
    with progress_bar(in_bytes=True) as bar:
        source = open_source(model, chosen, bar)
    try:
        echo(print_program(source.program, full=full))
        echo()
        for line in _summary(source):
            echo(line)
        if given["backend"] is not None or given["device"] is not None:
            _print_placement(source, chosen)
        if check:
            _check(source)
        if html is not None:
            from cortiq.cli.model_page import write_page

            write_page(source, model, html)
            note(f"drawn: {html}")
    finally:
        source.close()


def _summary(source: ModelSource) -> Iterator[str]:
    from cortiq.ir.printer import describe_rope, rope_tables
    from cortiq.ir.purpose import Purpose, purpose_of

    sizes: Counter[str] = Counter()
    for spec in source.program.weights.values():
        sizes[spec.layout or "?"] += prod(spec.shape)
    listed = ", ".join(f"{layout} {size / 1e6:.2f}" for layout, size in sizes.most_common())
    for table in rope_tables(source.program):
        yield f"rope: {describe_rope(table)}"
    row = sum(slot.bytes_per_row() for slot in source.program.slots.values())
    yield f"weights: {sum(sizes.values()) / 1e6:.2f} million, of these {listed}"
    yield f"state: {byte_count(row)} a token, {byte_count(row * source.program.context)} in all"
    if source.tokenizer.absent:
        yield "tokenizer: none; the model takes token ids"
    else:
        yield f"tokenizer: {source.tokenizer.vocab_size} ids, {_template(source)}"
    if purpose_of(source.program) is Purpose.TEXT:
        yield f"sampling: {source.usual}"
    yield from (f"note: {line}" for line in source.notes)
    yield f"hash: {source.model_hash()}"


def _template(source: ModelSource) -> str:
    from cortiq.ir.purpose import Purpose, purpose_of

    if source.tokenizer.chat_template():
        return "with a chat template"
    purpose = purpose_of(source.program)
    kind = "a base model" if purpose is Purpose.TEXT else f"for {purpose}"
    return f"no chat template ({kind})"


def _print_placement(source: ModelSource, chosen: LoadOptions) -> None:
    """Print the placement that the compiled executable reports."""
    from cortiq.model.load import choose_backend, compile_source
    from cortiq.placement.place import declined_nodes

    backend, device = choose_backend(chosen)
    executable = compile_source(source, backend, device, chosen)
    try:
        counts = Counter(executable.placement.values())
        declined = declined_nodes(executable)
    finally:
        executable.close()
    listed = ", ".join(f"{name} {count} nodes" for name, count in counts.items())
    echo(f"\nplacement on {backend.name}:{device}: {listed}")
    for name, reason in declined.items():
        echo(f"  declined: {name}: {reason}")


def _check(source: ModelSource) -> None:
    from cortiq.numerics.soundness import check_finite

    with progress_bar() as bar:
        bar("Checking hashes", 0, 1)
        damaged = list(source.damaged())
    if damaged:
        what = f"{', '.join(damaged[:3])} and {len(damaged) - 3} more" if len(damaged) > 3 else None
        what = f"differs from what was written: {what or ', '.join(damaged)}"
        raise FormatError(what, where=source.where, hint="convert the model again")
    total = len(source.weights)
    with progress_bar() as bar:
        for done, (name, weight) in enumerate(source.weights.items()):
            bar("Checking weights", done, total)
            check_finite(weight, name)
    note(f"checked: all values of {total} weights are finite{', hashes are right' * source.hashed}")
