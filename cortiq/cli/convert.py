"""`cortiq convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cortiq.cli.flags import grouped_command, options_of
from cortiq.cli.inputs import FILE, MODEL, OUT
from cortiq.cli.render import byte_count, echo, note, progress_bar
from cortiq.errors import RequestError
from cortiq.formats.cmf.reader import SUFFIX as CMF_SUFFIX
from cortiq.options import LoadOptions, resolve


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("out", type=OUT)
@click.option(
    "--format", "recipe", default="w4", show_default=True, metavar="RECIPE",
    help="w4 (tables and heads in w8), w4-all, w4-keep (those as they are), w8, w8b256, w16, f32 "
    "or keep; for GGUF w4, Q4_K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, BF16, F16, F32 or keep; for CMF w4 "
    "(q4_tiled), w4-mixed (values of attention and the last two layers in q8_row), w8 (q8_row), "
    "q8_row, q8_2f, q4_block, q4_tiled, q4tp, q2tp, vbit, vbit_ro, q1, q1p, q1s, q1t, f16, f32 or "
    "keep.",
)  # fmt: skip
@click.option(
    "--tensor", "tensors", multiple=True, metavar="PATTERN=FORMAT",
    help="Format of the matrices whose names fit; * stands for any text. May be repeated; the last "
    "that fits counts.",
)  # fmt: skip
@click.option(
    "--calibrate", metavar="FILE", type=FILE,
    help="A text; matrices of four bits are made to lose least on it (error feedback).",
)  # fmt: skip
@click.option(
    "--calibration-tokens", default=4096, show_default=True, type=click.IntRange(512, 1 << 20),
    help="Most tokens of that text that are read.",
)  # fmt: skip
@click.option(
    "--lora", multiple=True, metavar="PATH[:SCALE]",
    help="Merge this adapter first; may be repeated.",
)  # fmt: skip
@click.option(
    "--shard-gb", type=click.FloatRange(0.001), help="Of CMF: most gigabytes of tensors in a file.",
)  # fmt: skip
@click.option(
    "--sign-with", metavar="KEY", type=FILE,
    help="Of CMF: sign every file with this private Ed25519 key, in PEM or OpenSSH's format.",
)  # fmt: skip
@options_of(LoadOptions, only=("lenient",))
def convert(
    model: str, out: Path, recipe: str, tensors: tuple[str, ...], calibrate: Path | None,
    calibration_tokens: int, lora: tuple[str, ...], shard_gb: float | None, sign_with: Path | None,
    lenient: bool | None,
) -> None:  # fmt: skip
    """Quantise a model, or convert it to another format.

    OUT is a new folder, which loads as it is, a new file that ends in .gguf, for models that come
    from GGUF, or one that ends in .cmf. An interrupted conversion goes on where it stopped when the
    same command is given again; OUT is there only when it is whole. Prints the path.
    """
    from cortiq.convert.run import Calibration, convert_model

    if out.suffix != CMF_SUFFIX and (shard_gb is not None or sign_with is not None):
        raise RequestError("is for files that end in .cmf", where="--shard-gb or --sign-with")
    key = None if sign_with is None else _private_key(sign_with)
    text = None if calibrate is None else Calibration(calibrate, calibration_tokens)
    with progress_bar(in_bytes=True) as bar:
        made = convert_model(
            model, out, recipe, tensors=tensors, calibration=text, lora=lora, progress=bar,
            shard_bytes=int((shard_gb or 0) * 1e9),
            strict=not resolve(LoadOptions, {"lenient": lenient}).lenient,
        )  # fmt: skip
    if made.resumed:
        note(f"{made.resumed} tensors were there from an earlier start")
    sizes = sorted(made.layouts.items(), key=lambda pair: -pair[1])
    note(f"weights: {', '.join(f'{byte_count(size)} in {layout}' for layout, size in sizes)}")
    for line in made.notes:
        note(line)
    if key is not None:
        from cortiq.receipts.file_signature import sign_file

        for path in made.files:
            sign_file(path, key)
    echo(made.path)


def _private_key(path: Path) -> Any:
    from cortiq.receipts.signing import load_private_key

    return load_private_key(path)
