"""`cortiq convert`."""

from __future__ import annotations

from pathlib import Path

import click

from cortiq.cli.flags import grouped_command
from cortiq.cli.inputs import MODEL
from cortiq.cli.render import byte_count, echo, note, progress_bar


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--format", "recipe", default="w4", show_default=True, metavar="RECIPE",
    help="w4 (tables and heads in w8), w4-all, w4-keep (those as they are), w8, w8b256, w16, f32 "
    "or keep; for GGUF w4, Q4_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, BF16, F16, F32 or keep.",
)  # fmt: skip
@click.option(
    "--tensor", "tensors", multiple=True, metavar="PATTERN=FORMAT",
    help="Format of the matrices whose names fit; * stands for any text. May be repeated; the last "
    "that fits counts.",
)  # fmt: skip
@click.option(
    "--calibrate", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text; w4 matrices are made to lose least on it (error feedback).",
)  # fmt: skip
@click.option(
    "--calibration-tokens", default=4096, show_default=True, type=click.IntRange(512, 1 << 20),
    help="Most tokens of that text that are read.",
)  # fmt: skip
@click.option(
    "--lora", multiple=True, metavar="PATH[:SCALE]",
    help="Merge this adapter first; may be repeated.",
)  # fmt: skip
def convert(
    model: str, out: Path, recipe: str, tensors: tuple[str, ...], calibrate: Path | None,
    calibration_tokens: int, lora: tuple[str, ...],
) -> None:  # fmt: skip
    """Convert a model to other formats, once.

    OUT is a new folder, which loads as it is, or a new file that ends in .gguf, for models that
    come from GGUF. An interrupted conversion goes on where it stopped when the same command is
    given again; OUT is there only when it is whole. Prints the path.
    """
    from cortiq.convert.run import Calibration, convert_model

    text = None if calibrate is None else Calibration(calibrate, calibration_tokens)
    with progress_bar(in_bytes=True) as bar:
        made = convert_model(
            model, out, recipe, tensors=tensors, calibration=text, lora=lora, progress=bar
        )  # fmt: skip
    if made.resumed:
        note(f"{made.resumed} tensors were there from an earlier start")
    for layout, size in sorted(made.layouts.items(), key=lambda pair: -pair[1]):
        note(f"{layout}: {byte_count(size)}")
    echo(made.path)
