"""Structured output: `response_format` and forced tool calls as grammars."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cortiq.engine.masks import Masks
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields
from cortiq.serve.grammar import GrammarMasks
from cortiq.serve.messages import RequestTools
from cortiq.serve.served_model import ServedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

MakeMasks = Callable[["Sequence[int]", bool], Masks]
"""Makes the masks of one choice, given its prompt and whether that opened a thinking block."""
FORMAT_TYPES = ("text", "json_object", "json_schema")


def read_response_format(
    served: ServedModel, fields: Fields, tools: RequestTools
) -> MakeMasks | None:
    """Return the masks' factory for a request, or None if its answers are unrestricted."""
    schema = _schema(fields.fields("response_format"))
    if tools.forced:
        if schema is not None:
            message = "'response_format' and a forced 'tool_choice' exclude each other."
            raise invalid(message, "tool_choice")
        return _mask_factory(served, _call_grammar(served, tools), "tool_choice")
    if schema is None:
        return None
    return _mask_factory(served, served.grammars.schema_grammar(schema), "response_format")


def _schema(form: Fields | None) -> dict[str, object] | None:
    """Return the JSON schema of `response_format`, or None for free text."""
    if form is None:
        return None
    kind = form.choice("type", FORMAT_TYPES, "")
    inner = form.fields("json_schema")
    form.close()
    if kind != "json_schema":
        return {"type": "object"} if kind == "json_object" else None
    if inner is None:
        raise form.wrong("json_schema", "an object")
    schema = inner.object("schema")
    for name in ("name", "description"):
        inner.text(name)
    inner.flag("strict")
    inner.close()
    return {"type": "object"} if schema is None else schema


def _call_grammar(served: ServedModel, tools: RequestTools) -> str:
    """Return the grammar of a forced tool call."""
    dialect = served.dialect
    if dialect is None or dialect.wrap is None:
        message = "'tool_choice': calls of this model cannot be forced, only 'auto' and 'none'."
        raise invalid(message, "tool_choice", "unsupported_parameter")
    schemas = {name: tools.schemas[name] for name in tools.forced}
    return served.grammars.call_grammar(schemas, dialect.wrap)


def _mask_factory(served: ServedModel, grammar: str, param: str) -> MakeMasks:
    """Return the masks' factory of a grammar, which is compiled now so that errors come early."""
    grammars, thinking = served.grammars, served.thinking
    markers = (thinking.opens, thinking.closes) if thinking else ("", "")
    first = grammars.compiled(grammar, param)

    def make(prompt: Sequence[int], opened: bool) -> Masks:
        return GrammarMasks(grammars, first.deep_copy(), len(prompt), opened, *markers, grammar)

    return make
