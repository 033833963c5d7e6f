"""The form of an answer of `cortiq generate`: a JSON schema, or a grammar in a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cortiq.cli.inputs import argument_text
from cortiq.errors import RequestError

if TYPE_CHECKING:
    from cortiq.model.model import Model
    from cortiq.model.sight import ImagePrompt
    from cortiq.serve.grammar import GrammarMasks

MOST_BYTES = 1 << 20
"""Largest file of a schema or a grammar; a grammar has at most 65,536 characters."""
FLAGS = {"json_schema": "--json-schema", "grammar": "--grammar"}
"""Flags by the fields of a server's request that say the same."""


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the two flags to a command."""
    for name, metavar, said in (
        ("grammar", "FILE", "The answer follows the grammar of this file, in GBNF or Lark."),
        ("json_schema", "FILE|JSON", "The answer is JSON that follows this schema."),
    ):
        command = click.option(FLAGS[name], name, metavar=metavar, help=said)(command)
    return command


def read_form(json_schema: str | None, grammar: str | None, receipt: str | None) -> dict[str, str]:
    """Return the field that says an answer's form, as in a server's request; empty for none.

    Raises
    ------
    RequestError : both are given, or a receipt is wanted, which cannot hold them; a file cannot be
        read; or the grammar library is missing.
    """
    if json_schema is None and grammar is None:
        return {}
    if json_schema is not None and grammar is not None:
        raise RequestError("--json-schema and --grammar exclude each other")
    if receipt is not None:
        raise RequestError("a receipt cannot hold a schema or a grammar", where="--receipt")
    try:
        import llguidance  # noqa: F401
    except ImportError:
        what = "a schema or a grammar needs the package llguidance"
        raise RequestError(what, hint="pip install llguidance") from None
    if grammar is not None:
        return {"grammar": _text_of(grammar)}
    text = argument_text(json_schema or "", FLAGS["json_schema"])
    return {"json_schema": text if text.lstrip().startswith("{") else _text_of(text)}


def _text_of(path: str) -> str:
    """Return the text of a file."""
    from cortiq.formats.given_files import decoded_text, read_given

    data = read_given(Path(path), MOST_BYTES)
    if len(data) > MOST_BYTES:
        raise RequestError(f"the file has more than {MOST_BYTES} bytes", where=path)
    return decoded_text(data, path)


def masks_of_form(
    model: Model, form: dict[str, str], prompt: Sequence[int] | ImagePrompt, *, chat: bool
) -> GrammarMasks | None:
    """Return the masks of an answer to a prompt, as the server's of the same request; None for an
    answer of any form.

    Parameters
    ----------
    chat : whether the answer may begin with thinking, which has no form.

    Raises
    ------
    RequestError : the form cannot be followed.
    """
    if not form:
        return None
    from cortiq.dialects.thinking import thinking_of
    from cortiq.engine.request import vocabulary_size
    from cortiq.serve.answer_grammar import read_grammar
    from cortiq.serve.errors import ApiError
    from cortiq.serve.fields import Fields
    from cortiq.serve.grammar import GrammarMasks, Grammars
    from cortiq.serve.parsed_request import opens_thinking

    try:
        asked = read_grammar(model.tokenizer, Fields(form))
        assert asked is not None
        grammars = Grammars(model.tokenizer, vocabulary_size(model.program), model.eos_ids)
        matcher = grammars.compiled(asked.text, asked.param)
    except ApiError as error:
        (name,) = form
        message = error.message.removeprefix(f"'{name}' ")
        raise RequestError(message, where=FLAGS[name]) from None
    ids = prompt if isinstance(prompt, Sequence) else prompt.ids
    thinking = thinking_of(model.tokenizer.chat_template()) if chat else None
    markers = (thinking.opens, thinking.closes) if thinking else ("", "")
    opened = opens_thinking(model.tokenizer, thinking, ids)
    return GrammarMasks(grammars, matcher, len(ids), opened, *markers, asked.text)


def check_followed(masks: GrammarMasks | None) -> None:
    """Raise RequestError if an answer could not follow its form to the end."""
    if masks is not None and masks.fault:
        raise RequestError(f"the answer could not follow the form: {masks.fault}")
