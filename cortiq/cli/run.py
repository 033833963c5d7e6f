"""`cortiq run`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.flags import PER_TOKEN, grouped_command, options_of
from cortiq.cli.generate import (
    check_options,
    load_model,
    prompt_ids,
    with_adapter,
    with_draft_heads,
)
from cortiq.cli.inputs import MODEL, argument_text, at_terminal, piped_text
from cortiq.cli.media import media_options, needed_senses
from cortiq.cli.render import note
from cortiq.cli.show_generation import note_length, show_generation
from cortiq.errors import RequestError
from cortiq.options import ANSWER_DEFAULTS, GenerateOptions, LoadOptions, defaults, resolve

if TYPE_CHECKING:
    from cortiq.model.model import Model


CONTINUATION_TOKENS = defaults(GenerateOptions)["max_tokens"]


@grouped_command()
@click.argument("model", type=MODEL)
@click.argument("prompt", required=False)
@click.option("--raw", is_flag=True, help="Continue the text as it is, without a chat template.")
@click.option("--system", metavar="TEXT", help="System message, for a model with a chat template.")
@media_options
@click.option("--stats", is_flag=True, help="Show tokens per second on stderr.")
@options_of(GenerateOptions, LoadOptions, without=PER_TOKEN, **ANSWER_DEFAULTS)
@click.pass_context
def run(
    ctx: click.Context,
    model: str,
    prompt: str | None,
    raw: bool,
    system: str | None,
    pictures: tuple[str, ...],
    recordings: tuple[str, ...],
    stats: bool,
    **options: Any,
) -> None:
    """Answer a prompt, or chat.

    PROMPT is a message to a chat model, and a text to continue for a base model. Without it the
    prompt comes from stdin; on a terminal a chat begins. A text is continued by 256 tokens at most
    unless --max-tokens says otherwise.
    """
    text = argument_text(prompt, "PROMPT") if prompt is not None else piped_text()
    if text == "" or (text is None and not at_terminal()):
        raise RequestError(
            "the prompt is empty",
            where="PROMPT" if text is not None else "stdin",
            hint='give one: cortiq run MODEL "..."',
        )
    asked = {"images": pictures, "sounds": recordings}
    options |= needed_senses(asked)
    if text is None:
        if any(asked.values()):
            what, hint = "a chat takes them as messages", "/image FILE or /audio FILE"
            raise RequestError(what, where="--image, --audio", hint=hint)
        from cortiq.cli.chat import chat

        ctx.invoke(chat, model=model, system=system, template_pairs=(), saved=None, history=True,
                   stats=stats or None, **options)  # fmt: skip
        return
    chosen = with_adapter(options)
    resolved = resolve(GenerateOptions, chosen)
    check_options(resolved)
    with load_model(model, with_draft_heads(options, resolved.draft)) as opened:
        chats = not raw and _chats(opened, system)
        # A continuation ends nowhere by itself: it gets the length that `generate` gives one.
        usual = {**ANSWER_DEFAULTS, **({} if chats else {"max_tokens": CONTINUATION_TOKENS})}
        resolved = resolve(GenerateOptions, chosen, usual=usual)
        chosen |= {name: getattr(resolved, name) for name in usual}
        ids = prompt_ids(opened, text, system, {}, chat=chats, **asked)
        made = show_generation(opened, ids, chosen, quiet=False, wraps=chats)
    if made.note:
        note(made.note)
    note_length(made)
    if stats:
        from cortiq.cli.chat_commands import answer_summary

        note(answer_summary(made))
        if made.seed is not None:
            note(f"seed: {made.seed}")


def _chats(model: Model, system: str | None) -> bool:
    """Return whether a prompt is a message: a system message to a base model is an error later."""
    if system is not None or model.tokenizer.chat_template() is not None:
        return True
    if sys.stderr.isatty():
        note("a base model: it continues the text")
    return False
