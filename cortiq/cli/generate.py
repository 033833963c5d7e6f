"""`cortiq generate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.answer_form import check_followed, form_options, masks_of_form, read_form
from cortiq.cli.flags import CALIBRATED, grouped_command, options_of
from cortiq.cli.inputs import (
    MODEL,
    STDIN,
    argument_text,
    piped_text,
    stdin_text,
    template_options,
    token_ids,
)
from cortiq.cli.media import media_options, needed_senses
from cortiq.cli.questions import answering
from cortiq.cli.render import ProgressBar, counted, loading_line, note, print_json
from cortiq.cli.show_generation import (
    generation_object,
    note_length,
    note_unused,
    print_statistics,
    show_generation,
)
from cortiq.errors import RequestError
from cortiq.options import GenerateOptions, LoadOptions, resolve, select

if TYPE_CHECKING:
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model


IDS_HELP = "Token ids instead of a text; a model without a tokenizer prints ids, too."


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("text", metavar="[PROMPT]", required=False)
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt, as a flag; - reads stdin.")
@click.option("--ids", metavar="ID,ID,...", help=IDS_HELP)
@click.option("--chat", is_flag=True, help="Use the model's chat template.")
@click.option("--system", metavar="TEXT", help="System message, with --chat.")
@media_options
@click.option(
    "--template-option", "template_pairs", multiple=True, metavar="NAME=JSON",
    help="Variable for the chat template, such as enable_thinking=false; may be repeated.",
)  # fmt: skip
@click.option(
    "--prefix", metavar="FILE", help="Reuse a prefix written by `cortiq prefix save`, if it fits."
)
@click.option(
    "--receipt", metavar="FILE", help="Write a receipt, which `cortiq verify` checks anywhere."
)
@click.option(
    "--sign", metavar="KEY", help="Sign the receipt with this private Ed25519 key (PEM, OpenSSH)."
)
@form_options
@click.option("--stats", is_flag=True, help="Show times and memory on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the text.")
@options_of(GenerateOptions, LoadOptions)
def generate(
    model: str,
    text: str | None,
    prompt: str | None,
    ids: str | None,
    chat: bool,
    system: str | None,
    pictures: tuple[str, ...],
    recordings: tuple[str, ...],
    template_pairs: tuple[str, ...],
    prefix: str | None,
    receipt: str | None,
    sign: str | None,
    json_schema: str | None,
    grammar: str | None,
    stats: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate text.

    PROMPT is raw text that the model continues, as base models do: the tokenizer's start token, no
    chat template, special tokens not parsed. With --chat it is the user's message. Without it the
    prompt is read from stdin, minus one trailing newline.
    """
    given = read_prompt(prompt, ids, text)
    variables = template_options(template_pairs)
    _check_template(given, system, variables, chat=chat)
    if not as_json and (options["trace"] or options["confidence"]):
        raise RequestError("--trace and --confidence are fields of the object that --json prints")
    form = read_form(json_schema, grammar, receipt)
    write_receipt = receipt_writer(receipt, sign)
    chosen = with_adapter(options)
    resolved = resolve(GenerateOptions, chosen)  # reports a bad option before a model is opened
    check_options(resolved)
    asked = {"images": pictures, "sounds": recordings}
    load_options = with_draft_heads(options, resolved.draft) | needed_senses(asked)
    with note_missing_receipt(receipt), load_model(model, load_options) as opened:
        kept = [] if prefix is None else opened.load_prefix(prefix, adapter=resolved.adapter)
        if sys.stderr.isatty() and not chat and ids is None and opened.tokenizer.chat_templates:
            note("this model has a chat template: --chat uses it")
        fed = prompt_ids(opened, given, system, variables, chat=chat, **asked)
        chosen["masks"] = masks = masks_of_form(opened, form, fed, chat=chat)
        made = show_generation(opened, fed, chosen, quiet=as_json, wraps=chat and not form)
        check_followed(masks)
        path, model_hash = click.get_current_context().meta.get(CALIBRATED, ("", ""))
        if path and model_hash != opened.model_hash:
            note(f"{path}: the temperature of another model; `cortiq calibrate` finds one")
        write_receipt(made)
    note_unused(made, prefix, len(kept))
    if as_json:
        print_json(generation_object(made))
    elif made.seed is not None and resolved.seed is None:
        note(f"seed: {made.seed}")
    if made.note:
        note(made.note)
    if sys.stderr.isatty() and not as_json:
        note_length(made)
    if stats:
        print_statistics(made)


def _check_template(given: object, system: str | None, variables: object, *, chat: bool) -> None:
    """Raise RequestError for flags that do not go together with, or without, a chat template."""
    if not chat and (system is not None or variables):
        raise RequestError("--system and --template-option need --chat")
    if chat and not isinstance(given, str):
        raise RequestError("a chat template needs a text: give -p", where="--chat")


def receipt_writer(path: str | None, key: str | None) -> Callable[[Generation], None]:
    """Return a writer of receipts; file and key are checked at once, not after the generation."""
    if path is None:
        if key is not None:
            raise RequestError("signs a receipt and needs --receipt FILE", where="--sign")
        return lambda made: None
    from cortiq.receipts.record import writable_path
    from cortiq.receipts.signing import load_private_key

    target = writable_path(path)
    if key is not None:
        load_private_key(Path(key))

    def write(made: Generation) -> None:
        receipt = made.receipt()
        (receipt if key is None else receipt.sign(key)).write(target)

    return write


def check_options(options: GenerateOptions) -> None:
    """Check options without a model; raise RequestError."""
    from cortiq.engine.request import check_stop
    from cortiq.model.drafter_factory import drafters_named

    check_stop(options)
    drafters_named(options)


@contextmanager
def note_missing_receipt(receipt: str | None) -> Iterator[None]:
    """Note after an interrupt that the requested receipt was not written.

    The text generated until then cannot be verified.
    """
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        if receipt is not None:
            note(f"{receipt}: interrupted: no receipt was written")
        raise


def with_draft_heads(options: dict[str, Any], draft: str | None) -> dict[str, Any]:
    """Return the load options, with the draft heads that the drafter needs unless some are
    named.
    """
    from cortiq.model.drafter_factory import heads_of

    needed, given = heads_of(draft), resolve(LoadOptions, select(LoadOptions, options)).heads
    return options if needed is None or given != "off" else {**options, "heads": needed}


def first_adapter(options: dict[str, Any]) -> str | None:
    """Return the name of the first adapter that is loaded; None for none."""
    loaded = resolve(LoadOptions, select(LoadOptions, options)).adapters
    if not loaded:
        return None
    from cortiq.formats.adapter import split_adapter

    return split_adapter(loaded[0])[0]


def with_adapter(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of generating: with the first adapter, where some are loaded."""
    name = first_adapter(options)
    return select(GenerateOptions, options) | ({} if name is None else {"adapter": name})


def load_model(name: str, options: dict[str, Any]) -> Model:
    """Load a model with a progress bar; note what the user may not expect.

    A name that says too little is asked about at a terminal.
    """
    model = answering(name, lambda name: _load(name, options))
    for line in model.notes:
        note(line)
    if options.get("backend") is None:
        _note_slowness(model)
    if model.declined:
        nodes = counted(len(model.declined), "node")
        note(f"{model.backend} declines {nodes}; the reference computes them (see `inspect`)")
    return model


def _load(name: str, options: dict[str, Any]) -> Model:
    with loading_line(name) as clear:
        import cortiq
        from cortiq.model.load import PREPARING

        fetching, preparing = ProgressBar(True, clear), ProgressBar(False, clear)

        def show(what: str, done: int, total: int) -> None:
            (preparing if what == PREPARING else fetching)(what, done, total)

        try:
            return cortiq.load(name, progress=show, **select(LoadOptions, options))
        finally:
            fetching.stop()
            preparing.stop()


def _note_slowness(model: Model) -> None:
    """Note why the reference computes, where nobody chose it: it is for checking, not for speed."""
    from cortiq.plugins import availability, default_plugins
    from cortiq.plugins.selection import BACKEND_VARIABLE, FALLBACK

    if model.backend != FALLBACK or os.environ.get(BACKEND_VARIABLE):
        return
    faster = default_plugins().backends.get("cpu")
    reason = None if faster is None else availability(faster)[1]
    if reason is not None:
        first = reason.splitlines()[0]
        note(f"the reference computes, which is slow: cpu: {first} (see `cortiq doctor`)")


def read_prompt(prompt: str | None, ids: str | None, text: str | None = None) -> str | list[int]:
    """Return the prompt: an argument, that of `-p` (`-` reads stdin), stdin's, or `--ids`."""
    if prompt is not None and text is not None:
        raise RequestError("the prompt is given twice: as an argument and with -p")
    prompt = prompt if text is None else text
    if prompt is None and ids is None and (piped := piped_text()) is not None:
        return piped
    if prompt is None and ids is None:
        raise click.UsageError("Missing argument 'PROMPT', or option '-p' / '--ids'.")
    if prompt is None or ids is not None:
        if prompt is not None:
            raise RequestError("a prompt is a text or ids: give either -p or --ids")
        return token_ids(ids or "")
    text = stdin_text() if prompt == STDIN else argument_text(prompt, "-p")
    if not text:
        raise RequestError("the prompt is empty", where="-p")
    return text


def prompt_ids(
    model: Model, text: Any, system: str | None, variables: dict[str, Any], *, chat: bool,
    images: Sequence[str] = (), sounds: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Return a prompt: of a message in the chat template, or as it is, with files of both media."""
    if not chat and sounds:
        if images:
            raise RequestError("a raw prompt has images or sounds: --chat takes both")
        return model.audio_prompt(text, sounds)
    if not chat:
        return model.image_prompt(text, images) if images else model.ids(text)
    parts: list[Any] = [*({"image": p} for p in images), *({"audio": p} for p in sounds)]
    content = [*parts, {"type": "text", "text": text}] if parts else text
    messages = [{"role": "user", "content": content}]
    if system is not None:
        system = argument_text(system, "--system")
        messages.insert(0, {"role": "system", "content": system})
    return model.chat_prompt(messages, template_options=variables)
