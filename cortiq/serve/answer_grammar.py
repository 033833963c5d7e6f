"""Grammars that a request asks its answer to follow: schemas, patterns, choices, grammars, tags.

Besides OpenAI's `response_format` these are the fields of other servers: `structured_outputs` and
the older `guided_…` of vLLM, `grammar` and `json_schema` of llama.cpp.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cortiq.errors import FormatError
from cortiq.formats.strict_json import parse_object
from cortiq.serve.errors import ApiError, invalid
from cortiq.serve.fields import MAX_DEPTH, Fields, object_fields
from cortiq.serve.grammar import MAX_GRAMMAR, MAX_SHOWN, WHITESPACE, schema_error
from cortiq.tokenizer.tokenizer import Tokenizer

FORMAT_TYPES = ("text", "json_object", "json_schema", "structural_tag")
ALIASES = {
    "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice",
    "guided_grammar": "grammar", "grammar": "grammar", "json_schema": "json",
}  # fmt: skip
"""Fields of a request that stand for one of `structured_outputs`."""
MAX_CHOICES_OF_TEXT, MAX_TAGS = 1024, 64
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class AnswerGrammar:
    """A grammar, not yet compiled.

    Attributes
    ----------
    param : the field that asks for it. shown_ids : control tokens that are part of the text.
    """

    text: str
    param: str
    shown_ids: frozenset[int] = frozenset()


def read_grammar(tokenizer: Tokenizer, fields: Fields) -> AnswerGrammar | None:
    """Return the grammar that a request asks for, or None for free text.

    Raises
    ------
    ApiError : a field is wrong, or several of them ask for something.
    """
    found = [_of_format(tokenizer, fields.fields("response_format"))]
    outer = fields.fields("structured_outputs")
    if outer is not None:
        found += [_of_form(tokenizer, outer, name, name) for name in READERS]
        outer.close()
    found += [_of_form(tokenizer, fields, alias, form) for alias, form in ALIASES.items()]
    asked = [one for one in found if one is not None]
    if len(asked) > 1:
        message = f"'{asked[0].param}' and '{asked[1].param}' exclude each other."
        raise invalid(message, asked[1].param)
    return asked[0] if asked else None


def _of_format(tokenizer: Tokenizer, form: Fields | None) -> AnswerGrammar | None:
    """Read OpenAI's `response_format`."""
    if form is None:
        return None
    kind, param = form.choice("type", FORMAT_TYPES, ""), "response_format"
    if kind == "structural_tag":
        made = _tags(tokenizer, form, param)
        form.close()
        return made
    inner = form.fields("json_schema")
    form.close()
    if kind != "json_schema":
        return json_grammar(ANY_OBJECT, param) if kind == "json_object" else None
    if inner is None:
        raise form.wrong("json_schema", "an object")
    schema = inner.object("schema")
    for name in ("name", "description"):
        inner.text(name)
    inner.flag("strict")
    inner.close()
    return json_grammar(ANY_OBJECT if schema is None else schema, param)


def _of_form(tokenizer: Tokenizer, fields: Fields, name: str, form: str) -> AnswerGrammar | None:
    """Read one of the fields of `structured_outputs`, under this name."""
    made = READERS[form](tokenizer, fields, name)
    if made is not None and len(made.text) > MAX_GRAMMAR:
        what = f"its grammar has {len(made.text)} characters, more than {MAX_GRAMMAR}"
        raise schema_error(what, made.param)
    return made


def _json(tokenizer: Tokenizer, fields: Fields, name: str) -> AnswerGrammar | None:
    schema = _object_or_text(fields, name)
    return None if schema is None else json_grammar(schema, fields.path(name))


def _json_object(tokenizer: Tokenizer, fields: Fields, name: str) -> AnswerGrammar | None:
    return json_grammar(ANY_OBJECT, fields.path(name)) if fields.flag(name) else None


def _regex(tokenizer: Tokenizer, fields: Fields, name: str) -> AnswerGrammar | None:
    from llguidance import LLMatcher

    pattern = _short_text(fields, name)
    if pattern is None:
        return None
    return AnswerGrammar(LLMatcher.grammar_from_regex(pattern), fields.path(name))


def _choice(tokenizer: Tokenizer, fields: Fields, name: str) -> AnswerGrammar | None:
    words = fields.items(name)
    if words is None:
        return None
    proper = 0 < len(words) <= MAX_CHOICES_OF_TEXT and all(isinstance(w, str) and w for w in words)
    if not proper:
        raise fields.wrong(name, f"an array of 1 to {MAX_CHOICES_OF_TEXT} strings, none empty")
    return AnswerGrammar(f"start: {' | '.join(map(json.dumps, words))}", fields.path(name))


def _grammar(tokenizer: Tokenizer, fields: Fields, name: str) -> AnswerGrammar | None:
    """Read a grammar in the syntax of GBNF or of Lark."""
    from llguidance.gbnf_to_lark import any_to_lark

    text = _short_text(fields, name)
    if text is None:
        return None
    try:
        return AnswerGrammar(any_to_lark(text), fields.path(name))
    except Exception as error:  # the library raises that class itself, too
        why = (str(error).splitlines() or ["it is no grammar"])[0]
        raise schema_error(why[:MAX_SHOWN], fields.path(name)) from None


def _structural_tag(tokenizer: Tokenizer, fields: Fields, name: str) -> AnswerGrammar | None:
    given = _object_or_text(fields, name)
    if given is None:
        return None
    inner = Fields(given, fields.path(name))
    inner.text("type")
    made = _tags(tokenizer, inner, fields.path(name))
    inner.close()
    return made


READERS: Mapping[str, Callable[[Tokenizer, Fields, str], AnswerGrammar | None]] = {
    "json": _json, "json_object": _json_object, "regex": _regex, "choice": _choice,
    "grammar": _grammar, "structural_tag": _structural_tag,
}  # fmt: skip
"""Reader of each field of `structured_outputs`."""


def _tags(tokenizer: Tokenizer, fields: Fields, param: str) -> AnswerGrammar:
    """Read `structures` and `triggers`: free text, in which a trigger begins a structure.

    A structure is a text `begin`, JSON that follows `schema`, and a text `end`.
    """
    from llguidance import StructTag

    triggers, structures = fields.items("triggers"), fields.items("structures")
    if not structures or len(structures) > MAX_TAGS:
        raise fields.wrong("structures", f"an array of 1 to {MAX_TAGS} structures")
    if not triggers or not all(isinstance(one, str) and one for one in triggers):
        raise fields.wrong("triggers", "an array of strings, none of them empty")
    ids = {one: tokenizer.encode(one, add_bos=False, parse_special=True) for one in triggers}
    special = {one for one, of in ids.items() if len(of) == 1 and tokenizer.is_special(of[0])}
    tags = []
    for index, structure in enumerate(structures):
        inner = object_fields(structure, f"{fields.path('structures')}[{index}]")
        begin, schema = inner.text("begin", "") or "", inner.object("schema")
        end = inner.text("end", "") or ""
        inner.close()
        trigger = next((one for one in triggers if begin.startswith(one)), None)
        if trigger is None:
            raise inner.wrong("begin", "a text that starts with one of the triggers")
        grammar = {**(ANY_OBJECT if schema is None else schema), **WHITESPACE}
        tags.append(StructTag(trigger=trigger, begin=begin, grammar=grammar, end=end))
    text = StructTag.to_grammar(tags, assume_special=bool(special))
    return AnswerGrammar(text, param, frozenset(ids[one][0] for one in special))


def json_grammar(schema: Mapping[str, Any], param: str) -> AnswerGrammar:
    """Return the grammar of JSON texts that follow a schema."""
    return AnswerGrammar(f"start: %json {json.dumps({**schema, **WHITESPACE})}", param)


def _object_or_text(fields: Fields, name: str) -> dict[str, Any] | None:
    """Return a field that is an object, or the text of one."""
    value = fields.get(name, (dict, str), "an object, or the text of one")
    if not isinstance(value, str):
        return value
    try:
        return parse_object(value.encode(), name, MAX_DEPTH)
    except (FormatError, UnicodeEncodeError):
        raise fields.wrong(name, "an object, or the text of one") from None


def _short_text(fields: Fields, name: str) -> str | None:
    text = fields.text(name)
    if text is not None and (not text or len(text) > MAX_GRAMMAR):
        raise too_much(fields, name)
    return text


def too_much(fields: Fields, name: str) -> ApiError:
    """Return the error of an empty grammar or pattern, or of one that is too long."""
    path = fields.path(name)
    return schema_error(f"it has to have 1 to {MAX_GRAMMAR} characters", path)
