"""`cortiq replay`: a server's request log, or a failed case of the conformance kit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import grouped_command, options_of
from cortiq.cli.inputs import MODEL
from cortiq.cli.kit import kit_command
from cortiq.cli.render import echo, print_json, progress_bar
from cortiq.errors import RequestError
from cortiq.options import LoadOptions, flag, resolve, select

if TYPE_CHECKING:
    from cortiq.serve.log_replay import LogVerdict

DIFFERENT = 1
"""Exit code if an answer or a case is not the same."""
CASE_START = b"PK"
"""First bytes of a case's file, which is a zip archive."""
SHOWN_DIFFERENCES = 20


@grouped_command()
@click.argument("file", type=click.Path())
@click.argument("models", metavar="[MODEL]...", type=MODEL, nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for a log.")
@click.option(
    "--out", type=click.Path(file_okay=False), help="Folder for another file, for a case."
)
@click.option(
    "--image", "pictures", multiple=True, metavar="FILE",
    help="An image of a log's prompts; repeated in any order.",
)  # fmt: skip
@click.option(
    "--audio", "sounds", multiple=True, metavar="FILE",
    help="A sound of a log's prompts; repeated in any order.",
)  # fmt: skip
@options_of(
    LoadOptions,
    without=("context", "weight_format", "heads", "draft_vocabulary", "images", "sounds"),
)
@click.pass_context
def replay(
    ctx: click.Context,
    file: str,
    models: tuple[str, ...],
    as_json: bool,
    out: str | None,
    pictures: tuple[str, ...],
    sounds: tuple[str, ...],
    **options: Any,
) -> None:
    """Compute a server's request log again, or a failed case of `conform`.

    FILE is what `serve --request-log` wrote: every answer is recomputed and compared, tokens,
    digests and ends. MODEL names the files of models that are no known ones. Exits with 0 if
    everything is identical, with 1 if something differs, and with 2 if there is no verdict.

    A file that `conform --out` left is one failed case, which runs again on the backend that
    failed, or on --backend.
    """
    if _is_case(file):
        _replay_case(ctx, file, models, out, {**options, "image": pictures or None,
                                                  "audio": sounds or None})  # fmt: skip
        return
    if out is not None:
        raise RequestError("is for a case of `conform`, not for a log", where="--out")
    verdict = _replayed(file, models, options, pictures, sounds)
    if as_json:
        print_json(asdict(verdict))
    else:
        _print(verdict)
    if verdict.differences:
        ctx.exit(DIFFERENT)


def _is_case(file: str) -> bool:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(len(CASE_START)) == CASE_START
    except OSError as error:
        raise RequestError(f"cannot be read: {error.strerror}", where=file) from None


def _replay_case(
    ctx: click.Context,
    file: str,
    models: tuple[str, ...],
    out: str | None,
    options: dict[str, Any],
) -> None:
    others = [flag(name) for name, v in options.items() if v is not None and name != "backend"]
    if models or others:
        what = f"{', '.join([*others, *models])}: a case has its own model and options"
        raise RequestError(what, where=file)
    command = kit_command("replay", "Run a failed case again.")
    known = {parameter.name for parameter in command.params}
    given = {"file": file, "backend": options["backend"], "out": out}
    ctx.invoke(command, **{name: value for name, value in given.items() if name in known})


def _replayed(
    file: str,
    models: tuple[str, ...],
    options: dict[str, Any],
    pictures: tuple[str, ...],
    sounds: tuple[str, ...],
) -> LogVerdict:
    from cortiq.serve.log_replay import replay_log

    chosen = resolve(LoadOptions, select(LoadOptions, options))
    with progress_bar() as bar:
        return replay_log(
            Path(file), models, chosen, lambda done, total: bar("Recomputing", done, total),
            images=pictures, audio=sounds,
        )  # fmt: skip


def _print(verdict: LogVerdict) -> None:
    for sentence in verdict.differences[:SHOWN_DIFFERENCES]:
        echo(f"not identical: {sentence}")
    more = len(verdict.differences) - SHOWN_DIFFERENCES
    if more > 0:
        echo(f"and {more} more")
    echo(f"identical: {verdict.identical} answers, {verdict.tokens} tokens")
    if verdict.unanswered:
        echo(f"{verdict.unanswered} choices were asked for and have no answer in the log")
    if verdict.torn:
        echo(f"{verdict.torn} torn lines were left out")
