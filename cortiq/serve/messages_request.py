"""Anthropic's Messages API: a request as the chat request that asks the same."""

from __future__ import annotations

from typing import Any

from cortiq.errors import shown
from cortiq.serve.completion_params import MAX_TOKENS
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields, object_fields
from cortiq.serve.images import data_url

SHARED = (
    "model", "stream", "temperature", "top_p", "top_k", "seed", "min_p", "repetition_penalty",
    "chat_template_kwargs", "receipt", "priority",
)  # fmt: skip
"""Fields that a chat request has under the same name."""
NO_EFFECT = ("metadata", "service_tier", "cache_control", "context_management", "inference_geo")
"""Fields that are read and change nothing; prefixes are cached without being asked."""
UNSUPPORTED = {
    "container": "no code is run here",
    "mcp_servers": "tools are called by the client",
}
THINKING = {"enabled": True, "adaptive": True, "disabled": False}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def as_chat(fields: Fields, *, counted: bool = False) -> dict[str, Any]:
    """Return the chat request of a Messages request; ApiError if it cannot be one.

    Parameters
    ----------
    counted : it is only to be counted, and names no length of the answer.
    """
    for name, why in UNSUPPORTED.items():
        fields.refuse(name, why)
    made = {name: fields.values[name] for name in SHARED if name in fields.values}
    fields.note_read(*SHARED, *NO_EFFECT)
    most = fields.integer("max_tokens", 1, MAX_TOKENS)
    if most is None and not counted:
        raise fields.wrong("max_tokens", "the most tokens of the answer")
    made |= {} if most is None else {"max_completion_tokens": most}
    if (stops := fields.items("stop_sequences")) is not None:
        made["stop"] = stops
    made["messages"] = _system(fields) + _messages(fields)
    if made["messages"][-1]["role"] == "assistant":
        made["continue_final_message"] = True
    if (tools := fields.items("tools")) is not None:
        made["tools"] = [_tool(object_fields(t, f"tools[{i}]")) for i, t in enumerate(tools)]
    _tool_choice(fields, made)
    _thinking(fields, made)
    _output_config(fields, made)
    fields.close()
    return made


def _system(fields: Fields) -> list[dict[str, Any]]:
    given = fields.get("system", (str, list), "a string or an array of text blocks")
    if not given:
        return []
    blocks = _blocks(given, fields, "system", ("text",))
    return [{"role": "system", "content": _joined(blocks)}]


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """Return the conversation; results of tools become messages of their own."""
    given = fields.items("messages")
    if not given:
        raise fields.wrong("messages", "an array of at least one message")
    made: list[dict[str, Any]] = []
    for index, message in enumerate(given):
        inner = object_fields(message, f"messages[{index}]")
        role = inner.choice("role", ("user", "assistant", "system"), "")
        content = inner.get("content", (str, list), "a string or an array of blocks")
        if content is None:
            raise inner.wrong("content", "a string or an array of blocks")
        inner.close()
        blocks = _blocks(content, inner, "content", KINDS[role])
        made += _answer(blocks) if role == "assistant" else _asked(role, blocks)
    return made


KINDS = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}
"""Types of the blocks that a message may have, by its role."""


def _blocks(
    content: str | list[Any], fields: Fields, name: str, kinds: tuple[str, ...]
) -> list[tuple[str, Fields]]:
    """Return the blocks of a content, each with its type."""
    if isinstance(content, str):
        return [("text", Fields({"text": content}, fields.path(name)))]
    made = []
    for index, block in enumerate(content):
        inner = object_fields(block, f"{fields.path(name)}[{index}]")
        kind = inner.text("type", "") or ""
        if kind not in kinds:
            where, there = inner.path("type"), ", ".join(kinds)
            raise invalid(f"'{where}' must be one of {there}, not {shown(kind)}.", where)
        inner.note_read("cache_control", "citations")
        made.append((kind, inner))
    return made


def _joined(blocks: list[tuple[str, Fields]]) -> str:
    """Return the text of the text blocks, joined by line breaks."""
    return "\n".join(_text(block) for kind, block in blocks if kind == "text")


def _text(block: Fields) -> str:
    text = block.text("text")
    if text is None:
        raise block.wrong("text", "a string")
    block.close()
    return text


def _asked(role: str, blocks: list[tuple[str, Fields]]) -> list[dict[str, Any]]:
    """Return results of tools, then the message itself."""
    made = [_result(block) for kind, block in blocks if kind == "tool_result"]
    if any(kind != "tool_result" for kind, _ in blocks) or not made:
        made.append({"role": role, "content": _content(blocks)})
    return made


def _content(blocks: list[tuple[str, Fields]]) -> str | list[dict[str, Any]]:
    """Return the text of blocks, or texts and images as parts in their order."""
    if not any(kind == "image" for kind, _ in blocks):
        return _joined(blocks)
    return [
        _image(block) if kind == "image" else {"type": "text", "text": _text(block)}
        for kind, block in blocks
        if kind != "tool_result"
    ]


def _image(block: Fields) -> dict[str, Any]:
    """Return an image's block as chat requests have it."""
    source = block.fields("source")
    if source is None:
        raise block.wrong("source", "an object")
    if source.choice("type", ("base64", "url"), "") == "url":
        url = source.text("url", "") or ""
    else:
        kind, data = (source.text(name, "") or "" for name in ("media_type", "data"))
        url = data_url(data, kind)
    source.close()
    block.close()
    return {"type": "image_url", "image_url": {"url": url}}


def _result(block: Fields) -> dict[str, Any]:
    content = block.get("content", (str, list), "a string or an array of text blocks")
    inner = _blocks(content or "", block, "content", ("text", "image"))
    failed = block.flag("is_error")
    made = {"role": "tool", "tool_call_id": block.text("tool_use_id", ""), "content": ""}
    block.close()
    return made | {"content": f"Error: {_joined(inner)}" if failed else _content(inner)}


def _answer(blocks: list[tuple[str, Fields]]) -> list[dict[str, Any]]:
    """Return an answer's one message: thinking, text and calls."""
    thoughts, calls = [], []
    for kind, block in blocks:
        if kind == "thinking":
            thoughts.append(block.text("thinking", "") or "")
            block.text("signature")
        elif kind == "tool_use":
            arguments = {"name": block.text("name", ""), "arguments": block.object("input") or {}}
            calls.append({"id": block.text("id", ""), "type": "function", "function": arguments})
    made: dict[str, Any] = {"role": "assistant", "content": _joined(blocks)}
    made |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    return [made | ({"tool_calls": calls} if calls else {})]


def _tool(fields: Fields) -> dict[str, Any]:
    """Return a tool's entry as chat requests have it."""
    kind = fields.text("type", "custom")
    if kind != "custom":
        where = fields.path("type")
        raise invalid(f"'{where}': only the client's own tools, not {shown(kind)}.", where)
    fields.note_read("cache_control", "strict", "input_examples", "eager_input_streaming")
    function = {"name": fields.text("name"), "parameters": fields.object("input_schema")}
    if (description := fields.text("description")) is not None:
        function["description"] = description
    fields.close()
    return {"type": "function", "function": function}


def _tool_choice(fields: Fields, made: dict[str, Any]) -> None:
    inner = fields.fields("tool_choice")
    if inner is None:
        return
    kind = inner.choice("type", (*CHOICES, "tool"), "")
    name = inner.text("name")
    inner.flag("disable_parallel_tool_use")
    inner.close()
    made["tool_choice"] = CHOICES.get(kind, {"type": "function", "function": {"name": name}})


def _output_config(fields: Fields, made: dict[str, Any]) -> None:
    """Read `output_config`: the effort, and the format of the answer."""
    inner = fields.fields("output_config")
    if inner is None:
        return
    if (effort := inner.text("effort")) is not None:
        made["reasoning_effort"] = effort
    form = inner.fields("format")
    inner.close()
    if form is not None:
        form.choice("type", ("json_schema",), "")
        schema = {"name": "answer", "schema": form.object("schema")}
        form.close()
        made["response_format"] = {"type": "json_schema", "json_schema": schema}


def _thinking(fields: Fields, made: dict[str, Any]) -> None:
    """Read `thinking`: a variable of the template; its budget is the template's matter."""
    inner = fields.fields("thinking")
    if inner is None:
        return
    kind = inner.choice("type", tuple(THINKING), "")
    inner.integer("budget_tokens", 1, MAX_TOKENS)
    inner.text("display")
    inner.close()
    given = made.get("chat_template_kwargs") or {}
    made["chat_template_kwargs"] = {"enable_thinking": THINKING[kind], **given}
