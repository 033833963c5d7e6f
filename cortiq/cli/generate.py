"""`cortiq generate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import options_of
from cortiq.cli.inputs import (
    MODEL,
    STDIN,
    argument_text,
    template_options,
    token_ids,
    typed_text,
)
from cortiq.cli.render import byte_count, echo, echo_piece, note, print_json, progress_bar
from cortiq.errors import RequestError
from cortiq.options import GenerateOptions, LoadOptions, resolve, select

if TYPE_CHECKING:
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model

IDS_HELP = "Token ids in place of a text; a model without a tokenizer prints ids too."


@click.command()
@click.argument("model", type=MODEL)
@click.option(
    "-p", "--prompt", metavar="TEXT",
    help="The text to go on from; - reads stdin, but for one line break at its end. It is raw "
    "text: the tokenizer's start token, no chat template, special tokens not parsed. "
    "With --chat it is the user's message.",
)  # fmt: skip
@click.option("--ids", metavar="ID,ID,...", help=IDS_HELP)
@click.option("--chat", is_flag=True, help="Answer as the model's chat template has it.")
@click.option("--system", metavar="TEXT", help="System message, with --chat.")
@click.option(
    "--template-option", "template_pairs", multiple=True, metavar="NAME=JSON",
    help="Variable for the chat template, such as enable_thinking=false; may be repeated.",
)  # fmt: skip
@click.option(
    "--prefix", metavar="FILE", help="Go on from what `cortiq prefix save` wrote, where it fits."
)
@click.option(
    "--receipt", metavar="FILE", help="Write what `cortiq verify` checks on other hardware."
)
@click.option(
    "--sign", metavar="KEY", help="Sign the receipt with this private Ed25519 key (PEM, OpenSSH)."
)
@click.option("--stats", is_flag=True, help="Show times and memory on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@options_of(GenerateOptions, LoadOptions)
def generate(
    model: str,
    prompt: str | None,
    ids: str | None,
    chat: bool,
    system: str | None,
    template_pairs: tuple[str, ...],
    prefix: str | None,
    receipt: str | None,
    sign: str | None,
    stats: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text.

    Without --chat the model continues the raw text, which is what base models are for.
    """
    given = checked_prompt(prompt, ids)
    variables = template_options(template_pairs)
    if not chat and (system is not None or variables):
        raise RequestError("--system and --template-option need --chat")
    if chat and not isinstance(given, str):
        raise RequestError("a template makes its ids of a text: give -p", where="--chat")
    write_receipt = receipt_writer(receipt, sign)
    chosen = select(GenerateOptions, options)
    resolved = resolve(GenerateOptions, chosen)  # a bad one is said before a model is opened
    check_options(resolved)
    wanted = with_heads(options, resolved.draft)
    with told_if_interrupted(receipt), load_model(model, wanted) as opened:
        kept = opened.load_prefix(prefix) if prefix is not None else []
        if sys.stderr.isatty() and not chat and ids is None and opened.tokenizer.chat_templates:
            note("this model has a chat template: --chat uses it")
        fed = _chat_ids(opened, given, system, variables) if chat else opened.ids(given)
        made = _generate(opened, fed, chosen, quiet=as_json)
        write_receipt(made)
    if kept and not made.stats.reused_tokens:
        note(f"{prefix}: not used: {_why_not(len(kept))}")
    if as_json:
        print_json(as_object(made))
    elif resolved.temperature > 0 and resolved.seed is None:
        note(f"seed: {made.seed}")
    if made.note:
        note(made.note)
    if stats:
        _print_stats(made)


def _why_not(kept: int) -> str:
    """Why a prefix of so many tokens was of no use."""
    from cortiq.engine.prefixes import LEAST_ROWS

    if kept < LEAST_ROWS:
        return f"it has {kept} tokens, fewer than the {LEAST_ROWS} that are worth a copy"
    return f"the prompt does not go on from its {kept} tokens"


def receipt_writer(path: str | None, key: str | None) -> Callable[[Generation], None]:
    """Writes the receipt of a generation; file and key are looked at now, not when it is made."""
    if path is None:
        if key is not None:
            raise RequestError("signs a receipt: it needs --receipt FILE", where="--sign")
        return lambda made: None
    from cortiq.receipts.record import writable
    from cortiq.receipts.signing import load_private_key

    target = writable(path)
    if key is not None:
        load_private_key(Path(key))

    def write(made: Generation) -> None:
        receipt = made.receipt()
        (receipt if key is None else receipt.sign(key)).write(target)

    return write


def check_options(options: GenerateOptions) -> None:
    """What can be said of options without a model; RequestError."""
    from cortiq.engine.request import check_stop
    from cortiq.model.drafter_factory import drafters_named

    check_stop(options)
    drafters_named(options)


@contextmanager
def told_if_interrupted(receipt: str | None) -> Iterator[None]:
    """Say, of an interrupt, that the receipt that was asked for is not there.

    What is generated until then is text that nobody can check.
    """
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        if receipt is not None:
            note(f"{receipt}: interrupted: no receipt was written")
        raise


def with_heads(options: dict[str, Any], draft: str | None) -> dict[str, Any]:
    """The options of loading, with the draft head that a drafter needs and nobody named."""
    from cortiq.model.drafter_factory import heads_of

    needed, given = heads_of(draft), resolve(LoadOptions, select(LoadOptions, options)).heads
    return options if needed is None or given != "off" else {**options, "heads": needed}


def load_model(name: str, options: dict[str, Any]) -> Model:
    """`cortiq.load`, with a progress bar for what is fetched; says what the backend declines."""
    import cortiq

    with progress_bar(in_bytes=True) as bar:
        model = cortiq.load(name, progress=bar, **select(LoadOptions, options))
    if model.declined:
        count = len(model.declined)
        note(f"{model.backend} declines {count} nodes; the reference computes them (`inspect`)")
    return model


def checked_prompt(prompt: str | None, ids: str | None) -> str | list[int]:
    """The text of `-p`, which may be stdin's, or the ids of `--ids`; RequestError for neither."""
    if prompt is None and ids is None:
        raise click.UsageError("Missing option '-p' / '--prompt', or '--ids'.")
    if prompt is None or ids is not None:
        if prompt is not None:
            raise RequestError("a prompt is a text or ids: give one of -p and --ids")
        return token_ids(ids or "")
    text = typed_text() if prompt == STDIN else argument_text(prompt, "-p")
    if not text:
        raise RequestError("the prompt is empty", where="-p")
    return text


def _chat_ids(model: Model, text: Any, system: str | None, variables: dict[str, Any]) -> list[int]:
    messages = [{"role": "user", "content": text}]
    if system is not None:
        system = argument_text(system, "--system")
        messages.insert(0, {"role": "system", "content": system})
    return model.chat_ids(messages, template_options=variables)


def _generate(model: Model, ids: list[int], options: dict[str, Any], quiet: bool) -> Generation:
    written = False
    with progress_bar() as bar:

        def show(piece: str) -> None:
            nonlocal written
            bar.stop()
            if not quiet:
                echo_piece(piece)
                written = True

        def advance(done: int, total: int) -> None:
            bar("Reading the prompt", done, total)

        try:
            made = model.generate(ids, on_text=show, progress=advance, **options)
        except BaseException:
            if written:
                echo()
            raise
    if not quiet:
        echo(",".join(map(str, made.token_ids)) if model.tokenizer.absent else "")
    return made


def as_object(made: Generation) -> dict[str, Any]:
    """The JSON object of a generation."""
    names = (
        "text", "token_ids", "finish_reason", "backend", "device", "placement", "seed", "contract",
        "model_hash", "fingerprint", "digest", "note",
    )  # fmt: skip
    return {name: getattr(made, name) for name in names} | {"stats": made.stats.as_dict()}


def _print_stats(made: Generation) -> None:
    numbers = made.stats.as_dict()
    placed = ", ".join(f"{name} {count} nodes" for name, count in made.placement.items())
    memory = numbers["peak_memory_bytes"]
    note(f"backend {made.backend}:{made.device} ({placed}), finish reason {made.finish_reason}")
    note(f"load {numbers['load_seconds']:.2f} s")
    for part, count, what in (
        ("prompt", "prompt_tokens", "until the first token was drawn"),
        ("decode", "decoded_tokens", "after the first"),
    ):
        rate = numbers[f"{part}_tokens_per_second"]
        speed = f", {rate:.1f} tok/s" if rate is not None else ""
        note(
            f"{part} {numbers[count]} tokens in {numbers[f'{part}_seconds']:.2f} s{speed} ({what})"
        )
    if numbers["reused_tokens"]:
        note(f"of the prompt {numbers['reused_tokens']} tokens were kept, and not computed again")
    for line in draft_lines(numbers.get("drafting", {})):
        note(line)
    if memory is not None:
        note(f"peak memory {byte_count(memory)}")


def draft_lines(drafting: Mapping[str, Any]) -> list[str]:
    """What drafters did, for people: a line for each of them."""
    lines = [
        f"drafted by {name}: {d['rounds']} rounds, {d['accepted']} of {d['drafted']} tokens held,"
        f" {d['tokens_per_round']:.2f} tokens a round,"
        f" {d['draft_seconds']:.2f} of {d['wall_seconds']:.2f} s spent drafting"
        for name, d in drafting.get("drafters", {}).items()
    ]
    if lines:
        lines.append(f"steps without a draft: {drafting['plain_rounds']}")
    if "error" in drafting:
        lines.append(f"drafting was given up: {drafting['error']}")
    return lines
