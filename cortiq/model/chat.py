"""Conversations: messages to token ids, through the model's chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cortiq.arguments import mapping_of as checked_mapping
from cortiq.engine.request import id_list
from cortiq.errors import RequestError, TokenizerError, shown
from cortiq.ir import Program
from cortiq.ir.purpose import check_continues
from cortiq.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
NO_TEMPLATE = "no chat template: it is a base model"
EXAMPLE = "[{'role': 'user', 'content': 'Hello'}]"


def prompt_ids(tokenizer: Tokenizer, prompt: str | Iterable[int]) -> list[int]:
    """Return the token ids of a raw text, with the tokenizer's BOS; ids as they are."""
    if not isinstance(prompt, str):
        return id_list(prompt)
    if not prompt:
        raise RequestError("the prompt is empty", hint="give at least one character")
    return tokenizer.encode(prompt)


def chat_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    options: Mapping[str, Any] | None,
    where: str,
    program: Program,
    tools: Sequence[Mapping[str, Any]] = (),
    check: Callable[[str], None] = lambda text: None,
    begun: str = "",
    expanded: Callable[[str], str] = lambda text: text,
) -> list[int]:
    """Return the token ids of a conversation; see `Model.chat_ids`.

    Parameters
    ----------
    where : the model, for messages about it. program : what it computes.
    tools : JSON schemas of functions that the answer may call.
    check : called with the rendered text before it is cut into tokens.
    begun : beginning of the answer, to continue.
    expanded : gives the text with what stands for its images.
    """
    from cortiq.tokenizer.template import render

    conversation = check_messages(messages)
    template = tokenizer.chat_template(tools=bool(tools))
    if template is None:
        check_continues(program, where)
        hint = "give it a text to continue: `cortiq run MODEL TEXT`, or /v1/completions"
        raise TokenizerError(f"the model has {NO_TEMPLATE}", where=where, hint=hint)
    text = render(
        template,
        conversation,
        tools=tools,
        options=checked_mapping(options, "template_options", "give variables by name"),
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
    )
    text = expanded(text) + begun
    check(text)
    return tokenizer.encode(text, add_bos=False, parse_special=True)


def check_messages(messages: object) -> list[Message]:
    """Return the messages as a template takes them; RequestError names an invalid one.

    Each has a role, "developer" being "system", and a content, which only an answer may lack.
    """
    if isinstance(messages, Iterable) and not isinstance(messages, (str, bytes, Mapping)):
        listed = list(messages)
        if listed and all(isinstance(message, Mapping) for message in listed):
            return [_checked(message, number) for number, message in enumerate(listed)]
    given = "an empty list" if messages == [] else shown(messages)
    raise RequestError(
        f"a conversation is a list of messages, not {given}", hint=f"for example: {EXAMPLE}"
    )


def _checked(message: Message, number: int) -> Message:
    """Return a message after checking its role and content."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        what = f"messages[{number}]: the role is {shown(role)}"
        raise RequestError(what, hint=f"a role is one of {', '.join(ROLES)}")
    if content is None and role != "assistant":
        raise RequestError(f"messages[{number}] has no content", hint=f"for example: {EXAMPLE}")
    if content is not None and not isinstance(content, (str, list, tuple)):
        what = f"messages[{number}]: a content is a text or a list of parts, not {shown(content)}"
        raise RequestError(what)
    return as_template(message)


def as_template(message: Message) -> dict[str, Any]:
    """Return a message as templates expect it.

    Keys that are None are left out, developers are "system", an answer without content has "", and
    the arguments of its tool calls are mappings.
    """
    made = {key: value for key, value in message.items() if value is not None}
    if made["role"] == "developer":
        made["role"] = "system"
    if made["role"] == "assistant":
        made = {"content": "", **made}
        if isinstance(calls := made.get("tool_calls"), (list, tuple)):
            made["tool_calls"] = [_call(call) for call in calls]
    return made


def _call(call: object) -> object:
    """Return a tool call with its arguments as a mapping, with or without `function` around it."""
    if not isinstance(call, Mapping):
        return call
    if isinstance(function := call.get("function"), Mapping):
        return {**call, "function": _call(function)}
    return {**call, "arguments": mapping_of(call.get("arguments"))}


def mapping_of(arguments: object) -> Mapping[str, Any]:
    """Return a call's arguments as the mapping that templates walk through.

    A JSON text is read; nothing, `""` and `"null"` are no arguments. What is no object stands as it
    is under the name `arguments`: a model sees what it wrote, and the conversation can continue.
    """
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else None
        except (ValueError, RecursionError):
            value = arguments
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else {"arguments": arguments}
