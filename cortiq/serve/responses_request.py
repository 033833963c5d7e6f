"""OpenAI's Responses API: a request as the chat request that asks the same.

Nothing is stored: conversations are carried by their clients, as with `store: false`.
"""

from __future__ import annotations

from typing import Any

from cortiq.errors import shown
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields, object_fields
from cortiq.serve.ignored import note_ignored

SHARED = (
    "model", "stream", "temperature", "top_p", "top_logprobs", "parallel_tool_calls", "seed",
    "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
    "stop", "ignore_eos", "chat_template_kwargs", "receipt", "priority",
)  # fmt: skip
"""Fields that a chat request has under the same name."""
UNSUPPORTED = {
    "previous_response_id": "nothing is stored: send the earlier items in 'input'",
    "conversation": "nothing is stored: send the earlier items in 'input'",
    "prompt": "there are no stored prompts",
    "background": "answers are computed while the client waits",
    "max_tool_calls": "tools are called by the client",
}
LOGPROBS = "message.output_text.logprobs"
NO_EFFECT = ("include", "store", "truncation", "user", "metadata", "client_metadata")
"""Fields that are read and change nothing: what they ask for is what happens, or is not there."""
TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
ROLES = ("user", "assistant", "system", "developer")


def as_chat(fields: Fields) -> dict[str, Any]:
    """Return the chat request of a Responses request; ApiError if it cannot be one."""
    if fields.values.get("background") is False:
        fields.values.pop("background")
    for name, why in UNSUPPORTED.items():
        fields.refuse(name, why)
    made = {name: fields.values[name] for name in SHARED if name in fields.values}
    fields.note_read(*SHARED, *NO_EFFECT)
    made["messages"] = _messages(fields)
    if (most := fields.integer("max_output_tokens", 1, 2**31 - 1)) is not None:
        made["max_completion_tokens"] = most
    if (tools := fields.items("tools")) is not None:
        made["tools"] = [_tool(tool) for tool in offered_functions(tools)]
    choice = fields.get("tool_choice", (str, dict), "a string or an object")
    if choice is not None:
        made["tool_choice"] = _tool_choice(choice)
    if "top_logprobs" in made or LOGPROBS in (fields.items("include") or ()):
        made["logprobs"] = True
    _reasoning(fields, made)
    _text_format(fields, made)
    stream_options = fields.fields("stream_options")
    if stream_options is not None:
        stream_options.flag("include_obfuscation")
        stream_options.close()
    fields.close()
    return made


def _reasoning(fields: Fields, made: dict[str, Any]) -> None:
    inner = fields.fields("reasoning")
    if inner is None:
        return
    if (effort := inner.text("effort")) is not None:
        made["reasoning_effort"] = effort
    for name in ("summary", "generate_summary"):
        inner.text(name)
    inner.close()


def _text_format(fields: Fields, made: dict[str, Any]) -> None:
    """Read `text`: the format of the answer; its verbosity has no effect."""
    inner = fields.fields("text")
    if inner is None:
        return
    inner.text("verbosity")
    form = inner.fields("format")
    inner.close()
    if form is None:
        return
    kind = form.choice("type", ("text", "json_object", "json_schema"), "")
    schema = {name: value for name, value in form.values.items() if name != "type"}
    made["response_format"] = {"type": kind} | ({"json_schema": schema} if schema else {})


HOSTED = (
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation",
    "computer_use_preview", "local_shell",
)  # fmt: skip
"""Tools that OpenAI runs itself. They are not offered: the response's `tools` are without them, and
its `warnings` and header say so.
"""


def hosted_warnings(tools: list[Any]) -> list[str]:
    """Return a sentence for each tool of a request that is not offered to the model."""
    return [
        f"'tools[{index}]': {tool['type']} is not run here, and was not offered to the model."
        for index, tool in enumerate(tools)
        if isinstance(tool, dict) and tool.get("type") in HOSTED
    ]


def offered_functions(tools: list[Any], where: str = "tools") -> list[Fields]:
    """Return the functions among tools, those of a namespace for themselves."""
    made: list[Fields] = []
    for index, tool in enumerate(tools):
        fields = object_fields(tool, f"{where}[{index}]")
        kind = fields.text("type")
        if kind == "namespace":
            made += offered_functions(fields.items("tools") or [], fields.path("tools"))
        elif kind == "function":
            made.append(fields)
        elif kind in HOSTED:
            note_ignored(f"{where}[{index}]")
        else:
            place = fields.path("type")
            raise invalid(f"'{place}': only functions are supported, not {shown(kind)}.", place)
    return made


def namespaces(tools: list[Any]) -> dict[str, str]:
    """Return the namespace of each function that is in one, by the function's name."""
    return {
        str(inner.get("name")): str(tool.get("name"))
        for tool in tools
        if isinstance(tool, dict) and tool.get("type") == "namespace"
        for inner in tool.get("tools") or ()
        if isinstance(inner, dict)
    }


def _tool(fields: Fields) -> dict[str, Any]:
    """Return a function's entry of `tools` as chat requests have it."""
    function = {name: value for name, value in fields.values.items() if name != "type"}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | dict[str, Any]) -> Any:
    if isinstance(choice, str):
        return choice
    inner = object_fields(choice, "tool_choice")
    inner.choice("type", ("function",), "")
    return {"type": "function", "function": {"name": inner.text("name")}}


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """Return the messages that `instructions` and the items of `input` stand for."""
    given = fields.get("input", (str, list), "a string or an array of items")
    instructions = fields.text("instructions")
    head = [] if instructions is None else [{"role": "system", "content": instructions}]
    if given is None or not given:
        raise fields.wrong("input", "a string or an array of items, not empty")
    if isinstance(given, str):
        return [*head, {"role": "user", "content": given}]
    listed = _ItemList()
    for index, item in enumerate(given):
        listed.add(object_fields(item, f"input[{index}]"))
    return head + listed.messages


class _ItemList:
    """Items read so far, as messages: reasoning, text and calls of one answer are one message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._answering = False

    def add(self, fields: Fields) -> None:
        """Add an item."""
        kind = fields.text("type") or "message"
        reader = READERS.get(kind)
        if reader is None:
            where, there = fields.path("type"), ", ".join(READERS)
            raise invalid(f"'{where}' must be one of {there}, not {shown(kind)}.", where)
        for name in ("id", "status", "phase"):
            fields.text(name)
        message = reader(fields)
        fields.close()
        if message["role"] == "assistant" and self._answering:
            _join(self.messages[-1], message)
        else:
            self.messages.append(message)
        self._answering = message["role"] == "assistant"


def _join(answer: dict[str, Any], more: dict[str, Any]) -> None:
    """Add an item of an answer to the message of the items before it."""
    for name, value in more.items():
        if name == "tool_calls":
            answer[name] = [*answer.get(name, []), *value]
        elif name != "role":
            answer[name] = "\n".join(filter(None, [answer.get(name), value]))


def _read_message(fields: Fields) -> dict[str, Any]:
    role = fields.choice("role", ROLES, "")
    content = fields.get("content", (str, list), "a string or an array of parts")
    if content is None:
        raise fields.wrong("content", "a string or an array of parts")
    if role == "user" and isinstance(content, list):
        return {"role": role, "content": _parts(content, fields)}
    return {"role": role, "content": _text(content, fields, "content")}


def _parts(content: list[Any], fields: Fields) -> str | list[dict[str, Any]]:
    """Return a user's text, or where there are images or sounds all of these in their order."""
    kinds = [part.get("type") for part in content if isinstance(part, dict)]
    if not any(kind in ("input_image", "input_audio") for kind in kinds):
        return _text(content, fields, "content")
    made: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        where = f"{fields.path('content')}[{index}]"
        inner = object_fields(part, where)
        kind = inner.text("type")
        if kind == "input_audio":
            made.append(part)
            continue
        if kind != "input_image":
            text = _text([part], fields, "content")
            made.append({"type": "text", "text": text})
            continue
        inner.refuse("file_id", "no files are stored: send a data URL")
        inner.text("detail")
        url = inner.text("image_url")
        if url is None:
            raise inner.wrong("image_url", "a data URL")
        inner.close()
        made.append({"type": "image_url", "image_url": {"url": url}})
    return made


def _read_call(fields: Fields) -> dict[str, Any]:
    function = {"name": fields.text("name", ""), "arguments": fields.text("arguments", "")}
    fields.text("namespace")
    call = {"id": fields.text("call_id", ""), "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call]}


def _read_output(fields: Fields) -> dict[str, Any]:
    output = fields.get("output", (str, list), "a string or an array of parts")
    if output is None:
        raise fields.wrong("output", "a string or an array of parts")
    text = _text(output, fields, "output")
    return {"role": "tool", "tool_call_id": fields.text("call_id", ""), "content": text}


def _read_reasoning(fields: Fields) -> dict[str, Any]:
    """Return reasoning as the assistant's; its summary where the text itself is not there."""
    fields.text("encrypted_content")
    given = {name: fields.items(name) or [] for name in ("content", "summary")}
    name = "content" if given["content"] else "summary"
    parts = (object_fields(p, f"{fields.path(name)}[{i}]") for i, p in enumerate(given[name]))
    text = "\n".join(part.text("text", "") or "" for part in parts)
    return {"role": "assistant", "reasoning_content": text}


READERS = {
    "message": _read_message, "function_call": _read_call,
    "function_call_output": _read_output, "reasoning": _read_reasoning,
}  # fmt: skip
"""Readers of items, by their type."""


def _text(content: str | list[Any], fields: Fields, name: str) -> str:
    """Return the text of a content; several parts are joined by line breaks."""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        inner = object_fields(part, f"{fields.path(name)}[{index}]")
        kind = inner.text("type")
        if kind not in TEXT_PARTS:
            where = inner.path("type")
            raise invalid(f"'{where}': only text is supported, not {shown(kind)}.", where)
        text = inner.text("refusal" if kind == "refusal" else "text")
        if text is None:
            raise inner.wrong("text", "a string")
        texts.append(text)
    return "\n".join(texts)
