"""`cortiq verify`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import grouped_command, options_of
from cortiq.cli.inputs import MODEL
from cortiq.cli.render import counted, echo, print_json, progress_bar
from cortiq.errors import RequestError, shown
from cortiq.options import LoadOptions, flag, resolve, select

if TYPE_CHECKING:
    from cortiq.receipts.difference import Verification
    from cortiq.receipts.record import Receipt

NOT_IDENTICAL = 1
"""Exit code when something in the receipt is false."""


@grouped_command()
@click.argument("receipt")
@click.argument("model", required=False, type=MODEL)
@click.option(
    "--key", metavar="FILE",
    help="Public Ed25519 key (PEM, OpenSSH or hex) that must have signed the receipt.",
)  # fmt: skip
@click.option(
    "--url", metavar="URL",
    help="Have this server recompute it; the signature is checked here. CORTIQ_API_KEY is its key.",
)  # fmt: skip
@click.option(
    "--image", "pictures", multiple=True, metavar="FILE",
    help="An image that the receipt is about; repeated in their order.",
)  # fmt: skip
@click.option(
    "--audio", "sounds", multiple=True, metavar="FILE",
    help="A sound that the receipt is about; repeated in their order.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options_of(
    LoadOptions,
    without=("context", "weight_format", "heads", "draft_vocabulary", "images", "sounds"),
)
@click.pass_context
def verify(
    ctx: click.Context,
    receipt: str,
    model: str | None,
    key: str | None,
    url: str | None,
    pictures: tuple[str, ...],
    sounds: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Recompute a receipt's generation, or check a CMF file's hashes.

    All rows are computed at once. MODEL is the file that the receipt was made with; by default the
    known model that the receipt names. Exits with 0 if everything is identical, with 1 if something
    differs (the first step or field is named), and with 2 if there is no verdict.

    Of a CMF file in the receipt's place, every hash in it and the signature beside it are checked;
    --key is then the key that must have signed it.
    """
    import cortiq
    from cortiq.formats.cmf.model import is_cmf

    if is_cmf(Path(receipt)):
        from cortiq.cli.verify_container import verify_container

        strict = not resolve(LoadOptions, {"lenient": options.pop("lenient")}).lenient
        given = [flag(name) for name, value in options.items() if value is not None]
        if model is not None or url is not None or given:
            raise RequestError("a CMF file is checked by itself", where="verify")
        if not verify_container(Path(receipt), key, strict, as_json):
            ctx.exit(NOT_IDENTICAL)
        return

    read = cortiq.Receipt.read(receipt)
    if url is not None:
        if pictures or sounds:
            what = "a server takes no images and no sound of a receipt"
            where = "--image" if pictures else "--audio"
            raise RequestError(what, where=where, hint="verify it here: name the model")
        verdict = _verdict_of_server(url, read, model, key, options)
    else:
        verdict = _recomputed(read, model, key, (pictures, sounds), options)
    if as_json:
        print_json(asdict(verdict) | {"identical": verdict.identical})
    else:
        _print(read, verdict)
    if not verdict.identical:
        ctx.exit(NOT_IDENTICAL)


def _verdict_of_server(
    url: str, receipt: Receipt, model: str | None, key: str | None, options: dict[str, Any]
) -> Verification:
    given = [flag(name) for name, value in options.items() if value is not None]
    if model is not None or given:
        what = f"{', '.join(given) or 'MODEL'}: the server has its own"
        raise RequestError(what, where="--url")
    from cortiq.cli.remote import verify_at

    return verify_at(url, receipt, key)


def _recomputed(
    receipt: Receipt,
    model: str | None,
    key: str | None,
    media: tuple[tuple[str, ...], tuple[str, ...]],
    options: dict[str, Any],
) -> Verification:
    import cortiq

    pictures, sounds = media
    audio = list(sounds) if len(sounds) > 1 else next(iter(sounds), None)
    with progress_bar() as bar, progress_bar(in_bytes=True) as fetching:
        return cortiq.verify(
            receipt, model, key=key, fetching=fetching, images=pictures, audio=audio,
            progress=lambda done, rows: bar("Recomputing", done, rows),
            **select(LoadOptions, options),
        )  # fmt: skip


def _print(receipt: Receipt, verdict: Verification) -> None:
    from cortiq.receipts.signing import fingerprint_of

    where = f" on {verdict.backend}:{verdict.device}" if verdict.backend else ""
    if verdict.identical:
        echo(f"identical: {counted(verdict.steps, 'step')}{where}, {verdict.seconds:.2f} s")
    for number, difference in enumerate(verdict.differences):
        echo(f"{'also' if number else 'not identical'}: {difference}")
    if verdict.backend and not verdict.identical:
        echo(_agreement(verdict.steps, len(receipt.claim.token_ids)) + where)
    backend, version = (shown(receipt.stated.get(name)) for name in ("backend", "cortiq"))
    by = "not signed: anybody may have written that"
    if verdict.signed_by:
        by = f"signed by {fingerprint_of(verdict.signed_by)}"
    elif receipt.signature is not None:
        by = "the signature is not valid"
    echo(f"stated: made on {backend} by cortiq {version}; {by}")


def _agreement(steps: int, claimed: int) -> str:
    """Return how many steps are identical when something else differs."""
    if steps == claimed:  # the signature, or a field that no step shows
        return "the only step is identical" if steps == 1 else f"all {steps} steps are identical"
    return f"{counted(steps, 'step')} before it {'is' if steps == 1 else 'are'} identical"
