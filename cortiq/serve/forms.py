"""`response_format` and forced tool calls: which grammar a request's answers have to follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cortiq.engine.request import Masks
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields
from cortiq.serve.grammar import GrammarMasks
from cortiq.serve.messages import Tools
from cortiq.serve.served import Served

if TYPE_CHECKING:
    from collections.abc import Sequence

MakeMasks = Callable[["Sequence[int]", bool], Masks]
"""From a prompt, and whether it opened a thinking block, to the masks of one choice."""
KINDS = ("text", "json_object", "json_schema")


def read_form(served: Served, fields: Fields, tools: Tools) -> MakeMasks | None:
    """What restricts the answers of a request; None for nothing."""
    schema = _schema(fields.fields("response_format"))
    if tools.forced:
        if schema is not None:
            message = "'response_format' and a forced 'tool_choice' exclude each other."
            raise invalid(message, "tool_choice")
        return _made(served, _calls(served, tools), "tool_choice")
    if schema is None:
        return None
    return _made(served, served.grammars.of_schema(schema), "response_format")


def _schema(form: Fields | None) -> dict[str, object] | None:
    """The JSON schema that an answer has to follow."""
    if form is None:
        return None
    kind = form.choice("type", KINDS, "")
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


def _calls(served: Served, tools: Tools) -> str:
    """The grammar of a call that is forced."""
    dialect = served.dialect
    if dialect is None or dialect.wrap is None:
        message = "'tool_choice': calls of this model cannot be forced, only 'auto' and 'none'."
        raise invalid(message, "tool_choice", "unsupported_parameter")
    wanted = {name: tools.schemas[name] for name in tools.forced}
    return served.grammars.of_calls(wanted, dialect.wrap)


def _made(served: Served, grammar: str, param: str) -> MakeMasks:
    """Masks of a grammar; it is looked at once now, so that a bad one is said at once."""
    grammars, thinking = served.grammars, served.thinking
    markers = (thinking.opens, thinking.closes) if thinking else ("", "")
    first = grammars.compiled(grammar, param)

    def make(prompt: Sequence[int], opened: bool) -> Masks:
        return GrammarMasks(grammars, first.deep_copy(), len(prompt), opened, *markers)

    return make
