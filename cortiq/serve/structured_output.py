"""Structured output: what a request asks for, and forced tool calls, as masks of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cortiq.engine.masks import Masks
from cortiq.serve.answer_grammar import AnswerGrammar, read_grammar
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields
from cortiq.serve.grammar import GrammarMasks
from cortiq.serve.messages import NO_TOOLS, RequestTools
from cortiq.serve.served_model import ServedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

MakeMasks = Callable[["Sequence[int]", bool], Masks]
"""Makes the masks of one choice, given its prompt and whether that opened a thinking block."""


@dataclass(frozen=True)
class AnswerForm:
    """The form that answers of a request have.

    Attributes
    ----------
    make_masks : makes the masks of a choice. shown_ids : control tokens that are part of the text.
    """

    make_masks: MakeMasks
    shown_ids: frozenset[int]


def read_form(
    served: ServedModel, fields: Fields, tools: RequestTools = NO_TOOLS, *, thinks: bool = True
) -> AnswerForm | None:
    """Return the form of a request's answers, or None if they are unrestricted.

    Parameters
    ----------
    thinks : whether an answer may begin with thinking, which has no form.
    """
    asked = read_grammar(served.model.tokenizer, fields)
    if tools.forced:
        if asked is not None:
            message = f"'{asked.param}' and a forced 'tool_choice' exclude each other."
            raise invalid(message, "tool_choice")
        asked = AnswerGrammar(_call_grammar(served, tools), "tool_choice")
    if asked is None:
        return None
    return AnswerForm(_mask_factory(served, asked, thinks), asked.shown_ids)


def _call_grammar(served: ServedModel, tools: RequestTools) -> str:
    """Return the grammar of a forced tool call."""
    dialect = served.dialect
    if dialect is None or dialect.wrap is None:
        message = "'tool_choice': calls of this model cannot be forced, only 'auto' and 'none'."
        raise invalid(message, "tool_choice", "unsupported_parameter")
    schemas = {name: tools.schemas[name] for name in tools.forced}
    return served.grammars.call_grammar(schemas, dialect.wrap)


def _mask_factory(served: ServedModel, asked: AnswerGrammar, thinks: bool) -> MakeMasks:
    """Return the masks' factory of a grammar, which is compiled now so that errors come early."""
    grammars, thinking = served.grammars, served.thinking
    markers = (thinking.opens, thinking.closes) if thinking and thinks else ("", "")
    first = grammars.compiled(asked.text, asked.param)

    def make(prompt: Sequence[int], opened: bool) -> Masks:
        matcher = first.deep_copy()
        return GrammarMasks(grammars, matcher, len(prompt), opened, *markers, asked.text)

    return make
