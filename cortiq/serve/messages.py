"""Chat messages and tools of a request, in the form that chat templates expect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cortiq.errors import shown
from cortiq.hearing.sound import MAX_BYTES
from cortiq.model.chat import ROLES, as_template
from cortiq.model.sight import MAX_IMAGES
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields, object_fields
from cortiq.serve.images import decoded, image_bytes

TOOL_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
MAX_TOOLS = 128
MEDIA_TYPES = ("image_url", "input_audio")
SOUND_FORMATS = ("wav", "mp3", "flac", "ogg")


@dataclass(frozen=True)
class RequestTools:
    """The tools of a request.

    Attributes
    ----------
    offered : as the template gets them; empty where there are none, or none may be called.
    schemas : JSON schema of the arguments, by name.
    forced : names of which one has to be called; empty where none has to.
    """

    offered: tuple[Mapping[str, Any], ...] = ()
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    forced: tuple[str, ...] = ()


NO_TOOLS = RequestTools()


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """Read `messages`: contents as texts, arguments of earlier calls as objects."""
    messages = fields.items("messages")
    if not messages:
        raise fields.wrong("messages", "an array of at least one message")
    _check_count(messages)
    return [_message(object_fields(m, f"messages[{i}]")) for i, m in enumerate(messages)]


def _check_count(messages: list[Any]) -> None:
    """Refuse more images or sounds than a prompt may have before one is decoded, or fetched."""
    contents = [m.get("content") for m in messages if isinstance(m, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    for kind in MEDIA_TYPES:
        if kinds.count(kind) > MAX_IMAGES:
            raise invalid(f"'messages': more than {MAX_IMAGES} parts {kind!r}.", "messages")


def _message(fields: Fields) -> dict[str, Any]:
    role = fields.choice("role", ROLES, "")
    message: dict[str, Any] = {"role": role}
    content = fields.get("content", (str, list), "a string or an array of parts")
    if content is not None:
        message["content"] = _content(content, fields, role)
    elif role != "assistant":
        raise fields.wrong("content", "a string or an array of parts")
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
        if (value := fields.text(name)) is not None:
            message[name] = value
    calls = fields.items("tool_calls")
    if calls:
        path = fields.path("tool_calls")
        if role != "assistant":
            raise invalid(f"'{path}': only messages of the assistant have tool calls.", path)
        read = (_call(object_fields(call, f"{path}[{i}]")) for i, call in enumerate(calls))
        message["tool_calls"] = list(read)
    fields.items("annotations")
    for name in ("refusal", "audio", "function_call"):
        fields.refuse(name, "messages are texts and tool calls")
    fields.close()
    return as_template(message)


def _content(content: str | list[Any], fields: Fields, role: str) -> str | list[dict[str, Any]]:
    """Return a content: its text, several parts joined by line breaks; or parts in their order
    where there are images or sounds, which users and tools send.
    """
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        inner = object_fields(part, f"{fields.path('content')}[{index}]")
        kind = inner.text("type")
        if kind is None:
            raise inner.wrong("type", "text")
        sees = MEDIA_TYPES if role in ("user", "tool") else ()
        if kind not in ("text", "refusal", *sees):
            where = inner.path("type")
            allowed = "text, image_url or input_audio" if sees else "text"
            raise invalid(f"'{where}' must be {allowed}, not {shown(kind)}.", where)
        if kind == "image_url":
            parts.append({"type": "image", "image": _image(inner)})
            continue
        if kind == "input_audio":
            parts.append({"type": "audio", "audio": _audio(inner)})
            continue
        text = inner.text(kind)
        if text is None:
            raise inner.wrong(kind, "a string")
        parts.append({"type": "text", "text": text})
    if any("text" not in part for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _audio(fields: Fields) -> bytes:
    """Return the file of a sound's part; its `format` is what the file itself says."""
    inner = fields.fields("input_audio")
    data = None if inner is None else inner.text("data")
    if inner is None or data is None:
        raise fields.wrong("input_audio", "an object with data")
    inner.choice("format", SOUND_FORMATS, "")
    inner.close()
    return decoded(data, inner.path("data"), MAX_BYTES)


def _image(fields: Fields) -> bytes:
    """Return the file of an image's part; its `detail` has no effect."""
    given = fields.get("image_url", (str, dict), "an object with a url")
    inner = fields
    url = given if isinstance(given, str) else None
    if isinstance(given, dict):
        inner = object_fields(given, fields.path("image_url"))
        url = inner.text("url")
        inner.text("detail")
        inner.close()
    if url is None:
        raise inner.wrong("image_url" if inner is fields else "url", "a data URL")
    return image_bytes(url, fields.path("image_url"))


def _call(fields: Fields) -> dict[str, Any]:
    """Read a tool call of an earlier answer; `as_template` parses its arguments."""
    function = fields.fields("function")
    if function is None:
        raise fields.wrong("function", "an object")
    arguments = function.get("arguments", (str, dict), "a string or an object")
    made = {"name": function.text("name", ""), "arguments": arguments}
    return {"id": fields.text("id", ""), "type": "function", "function": made}


def read_tools(fields: Fields) -> RequestTools:
    """Read `tools` and `tool_choice`; with "none" there are no tools."""
    given = fields.items("tools") or []
    if len(given) > MAX_TOOLS:
        raise fields.wrong("tools", f"an array of at most {MAX_TOOLS} tools")
    fields.flag("parallel_tool_calls")
    read = [_tool(object_fields(tool, f"tools[{i}]")) for i, tool in enumerate(given)]
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in read}
    forced = _forced(fields, list(schemas))
    if not given or forced is None:
        return NO_TOOLS
    return RequestTools(tuple(read), schemas, forced)


def _tool(fields: Fields) -> dict[str, Any]:
    """Read one tool, in the form that templates expect."""
    fields.choice("type", ("function",), "")
    function = fields.fields("function")
    if function is None:
        raise fields.wrong("function", "an object")
    name = function.text("name", "") or ""
    if not TOOL_NAME.fullmatch(name):
        raise function.wrong("name", "a name of letters, digits, underscores and dashes")
    function.text("description")
    function.object("parameters")
    return {**fields.values, "function": function.values}


def _forced(fields: Fields, names: list[str]) -> tuple[str, ...] | None:
    """Return the tools of which one must be called (empty: any or none), or None if no tool may be
    called.
    """
    choice = fields.get("tool_choice", (str, dict), "a string or an object")
    if choice is None or choice == "auto":
        return ()
    if choice == "none":
        return None
    if isinstance(choice, dict):
        inner = object_fields(choice, "tool_choice")
        inner.choice("type", ("function",), "")
        function = inner.fields("function")
        names = [n for n in names if function is not None and n == function.text("name")]
    elif choice != "required":
        raise fields.wrong("tool_choice", "none, auto, required or a function")
    if not names:
        raise invalid("'tool_choice' names no tool of 'tools'.", "tool_choice")
    return tuple(names)
