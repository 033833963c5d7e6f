"""Chat templates: messages to the text a model was trained on, as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import CodeType, TracebackType
from typing import Any

from cortiq.errors import TokenizerError

__all__ = ["render"]

MAX_SOURCE = 1 << 18
"""Characters of a template's source."""

BASE_UNITS = 1_000_000
"""Steps, or groups of 16 characters, that any template may use; see `RenderBudget`."""

UNITS_PER_INPUT_UNIT = 64
"""Further units for each unit of messages and tools: long conversations need longer work."""

MAX_FORM = 256
"""Characters of a format for times: a letter of it may become a long name."""

MAX_MESSAGE = 1000
"""Characters of what a template says when it refuses a conversation."""

SECONDS = 5.0
"""Processor time of one rendering."""

_RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
_REASONING = ("reasoning_content", "thinking", "reasoning")
_JSON_LIMIT = 16


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    bos_token: str = "",
    eos_token: str = "",
    now: datetime | None = None,
) -> str:
    """Return the prompt that `template` makes of `messages`.

    Encode it with `add_bos=False, parse_special=True`: a template writes its own BOS.

    Parameters
    ----------
    template : Jinja source, as in tokenizer_config.json or a GGUF file.
    messages : each a mapping with `role` and mostly `content`; keys that are None are left out.
    add_generation_prompt : end with the header of the assistant's turn.
    tools : JSON schemas of functions; templates see none rather than an empty list.
    options : further variables (`enable_thinking`, `documents`, ...).
    now : the time of `strftime_now`; the current time if None.

    Raises
    ------
    TokenizerError : the template is malformed, refuses the messages, or was stopped; names the
        line of the template.
    """
    options = dict(options or {})
    for name in _RESERVED:
        if name in options:
            raise TokenizerError(f"{name!r} is not a template option; it has its own argument")
    variables = {
        **_plain(options, "options"),
        "messages": [_message(message) for message in messages],
        "tools": _plain(list(tools), "tools") if tools else None,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    return _run(template, variables, now)


def _run(source: str, variables: dict[str, Any], now: datetime | None) -> str:
    from jinja2 import Template
    from jinja2.exceptions import TemplateError

    from cortiq.tokenizer.render_budget import BudgetError, RenderBudget, measure

    code = _compile(source)
    size = measure(variables, 1 << 40)
    environment = _environment(RenderBudget(BASE_UNITS + UNITS_PER_INPUT_UNIT * size, SECONDS), now)
    template = Template.from_code(environment, code, environment.make_globals(None))
    try:
        return "".join(template.root_render_func(template.new_context(variables)))
    except BudgetError as error:
        raise _stopped(str(error), error.__traceback__) from error
    except TemplateError as error:
        raise _stopped(error.message or type(error).__name__, error.__traceback__) from error
    except Exception as error:  # any exception that the template causes
        message = f"{type(error).__name__}: {error}"
        raise _stopped(message, error.__traceback__) from error


@lru_cache(maxsize=8)
def _compile(source: str) -> CodeType:
    from jinja2 import TemplateSyntaxError

    from cortiq.tokenizer.render_budget import RenderBudget

    if len(source) > MAX_SOURCE:
        raise TokenizerError(f"the chat template is longer than {MAX_SOURCE} characters")
    try:
        return _environment(RenderBudget(BASE_UNITS, SECONDS), None).compile(source)
    except TemplateSyntaxError as error:
        raise _failure(error.message or "syntax error", error.lineno) from error
    except Exception as error:  # nesting too deep for the parser or for Python's compiler
        raise _failure(f"cannot be compiled: {type(error).__name__}", None) from error


def _environment(budget: Any, now: datetime | None) -> Any:
    from jinja2.exceptions import TemplateError

    from cortiq.tokenizer.template_sandbox import TemplateEnvironment

    def raise_exception(message: Any) -> None:
        raise TemplateError(message if isinstance(message, str) else str(message))

    def strftime_now(form: str) -> str:
        if len(form) > MAX_FORM:
            raise ValueError(f"a time is formatted by more than {MAX_FORM} characters")
        return (now or datetime.now()).strftime(form)

    environment = TemplateEnvironment(budget)
    environment.add_global("raise_exception", raise_exception)
    environment.add_global("strftime_now", strftime_now)
    environment.add_filter("tojson", _tojson)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's own filter nothing is escaped for HTML, and keys keep their order.
    wide = (len(indent) if isinstance(indent, str) else indent or 0) > _JSON_LIMIT
    if wide or any(len(text) > _JSON_LIMIT for text in separators or ()):
        raise ValueError(f"tojson indents or separates by more than {_JSON_LIMIT} characters")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as templates expect it: no None, reasoning under the names they read."""
    if not isinstance(message, Mapping):
        raise TokenizerError(f"a message must be a mapping with 'role', not {message!r}")
    given = {key: value for key, value in message.items() if value is not None}
    plain = _plain(given, "messages")
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _plain(value: Any, where: str) -> Any:
    """Copy a value into exact JSON types: objects with methods must not enter a sandbox."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where) for item in value]
    kind = type(value).__name__
    raise TokenizerError(f"a chat template takes JSON values, not {kind}", where=where)


def _stopped(message: str, traceback: TracebackType | None) -> TokenizerError:
    """Return the error with the innermost template line of the traceback."""
    line = None
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return _failure(message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…", line)


def _failure(message: str, line: int | None) -> TokenizerError:
    return TokenizerError(message, where="chat template" + (f", line {line}" if line else ""))
