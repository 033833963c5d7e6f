"""Ollama's API: requests as the chat, text and embedding requests that ask the same."""

from __future__ import annotations

import re
from typing import Any

from cortiq.serve.completion_params import MAX_TOKENS
from cortiq.serve.errors import invalid
from cortiq.serve.fields import Fields, object_fields
from cortiq.serve.images import data_url

OPTION_NAMES = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "seed": "seed", "stop": "stop", "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
}  # fmt: skip
"""Names of Ollama's options of sampling, and ours."""
MACHINE_OPTIONS = frozenset({
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "use_mmap",
    "use_mlock", "numa", "low_vram", "f16_kv", "vocab_only", "logits_all",
})  # fmt: skip
"""Options of how a model is loaded and run, which a request does not change here."""
SWITCHED_OFF = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}
"""Samplers that are not supported, with the value at which each changes nothing."""
OF_A_SAMPLER = ("mirostat_tau", "mirostat_eta")
"""Options of mirostat, without effect while it is off."""
NO_EFFECT = ("keep_alive", "truncate")
UNSAID = -1.0
"""Time to keep a model loaded of a request that does not say one."""
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def chat_request(fields: Fields) -> dict[str, Any]:
    """Return the chat request of `/api/chat`; empty `messages` only load a model."""
    made = _shared(fields)
    given = fields.items("messages") or []
    made["messages"] = [
        _message(object_fields(message, f"messages[{i}]")) for i, message in enumerate(given)
    ]
    if given and made["messages"][-1]["role"] == "assistant":
        made["continue_final_message"] = True
    if tools := fields.items("tools"):
        made["tools"] = tools
    fields.close()
    return made


def generate_request(fields: Fields, *, chats: bool) -> dict[str, Any]:
    """Return the chat or text request of `/api/generate`.

    Parameters
    ----------
    chats : whether the model has a chat template, which a `raw` request leaves out.
    """
    made = _shared(fields)
    prompt, system = fields.text("prompt", "") or "", fields.text("system", "")
    images = _images(fields)
    for name in ("suffix", "template", "context"):
        if fields.values.get(name) in ("", []):
            fields.note_read(name)
        else:
            fields.refuse(name, "a prompt is a text")
    raw = fields.flag("raw") or not chats
    fields.close()
    if not raw:
        head = [{"role": "system", "content": system}] if system else []
        asked = {"role": "user", "content": _content(prompt, images)}
        return {**made, "messages": [*head, asked]}
    if images:
        raise invalid("'images' need the model's chat template.", "images")
    if system or "response_format" in made:
        name = "system" if system else "format"
        raise invalid(f"'{name}' needs the model's chat template.", name)
    made.pop("chat_template_kwargs", None)
    return {**made, "prompt": prompt}


def keep_seconds(fields: Fields) -> float | None:
    """Return how long `keep_alive` keeps a model loaded: seconds or a text such as `5m`.

    None is for ever, as negative values say; `UNSAID` stands for no value.
    """
    expected = "seconds, or a duration such as 5m"
    value = fields.get("keep_alive", (int, float, str), expected)
    if value is None:
        return UNSAID
    if isinstance(value, str):
        text = value.strip().removeprefix("-")
        parts = DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise fields.wrong("keep_alive", expected)
        sign = -1 if value.strip().startswith("-") else 1
        value = sign * sum(float(number) * UNITS[unit] for number, unit in parts)
    return None if value < 0 else float(value)


def embed_request(fields: Fields) -> dict[str, Any]:
    """Return the embedding request of `/api/embed`."""
    fields.note_read("keep_alive", "truncate", "options")
    names: tuple[str, ...] = ("model", "input", "dimensions")
    made = {name: fields.values[name] for name in names
            if name in fields.values}  # fmt: skip
    fields.note_read(*made)
    fields.close()
    return made


def older_embed_request(fields: Fields) -> dict[str, Any]:
    """Return the embedding request of `/api/embeddings`, whose vector has the length it has."""
    prompt = fields.text("prompt")
    if not prompt:
        raise fields.wrong("prompt", "a string, not empty")
    return {**embed_request(fields), "input": prompt, "normalise": False}


def _shared(fields: Fields) -> dict[str, Any]:
    """Return the fields that `/api/chat` and `/api/generate` share; streams by default."""
    made: dict[str, Any] = {"model": fields.text("model", "")}
    made["stream"] = fields.flag("stream", True)
    made["receipt"] = fields.flag("receipt")
    made |= {name: fields.values[name] for name in ("priority",) if name in fields.values}
    fields.note_read("priority")
    fields.note_read(*NO_EFFECT)
    made |= _options(fields)
    form = fields.get("format", (str, dict), "json or a schema")
    if form not in (None, "", "json") and not isinstance(form, dict):
        raise fields.wrong("format", "json or a schema")
    if form:
        schema = {"schema": form} if isinstance(form, dict) else None
        kind = "json_object" if schema is None else "json_schema"
        made["response_format"] = {"type": kind} | ({"json_schema": schema} if schema else {})
    think = fields.get("think", (bool, str), "true, false, low, medium or high")
    if isinstance(think, bool):
        made["chat_template_kwargs"] = {"enable_thinking": think}
    elif think is not None:
        made["chat_template_kwargs"] = {"enable_thinking": True, "reasoning_effort": think}
    for name in ("logprobs", "top_logprobs"):
        if fields.values.get(name):
            fields.refuse(name, "ask at /v1/chat/completions")
        fields.note_read(name)
    return made


def _options(fields: Fields) -> dict[str, Any]:
    """Return `options` under our names; those of sampling that we lack are refused by name."""
    inner = fields.fields("options")
    if inner is None:
        return {}
    inner.note_read(*MACHINE_OPTIONS, *OF_A_SAMPLER)
    inner.note_read(*(n for n, off in SWITCHED_OFF.items() if inner.values.get(n) == off))
    made = {
        ours: inner.values[theirs]
        for theirs, ours in OPTION_NAMES.items()
        if theirs in inner.values
    }
    inner.note_read(*OPTION_NAMES)
    most = inner.integer("num_predict", -2, MAX_TOKENS)
    inner.close()
    return made | ({"max_tokens": most} if most is not None and most > 0 else {})


def _message(fields: Fields) -> dict[str, Any]:
    """Return a message as chat requests have it."""
    text = fields.text("content", "") or ""
    made: dict[str, Any] = {"role": fields.text("role", "")}
    made["content"] = _content(text, _images(fields))
    if thought := fields.text("thinking"):
        made["reasoning_content"] = thought
    if name := fields.text("tool_name"):
        made["name"] = name
    if call := fields.text("tool_call_id"):
        made["tool_call_id"] = call
    if calls := fields.items("tool_calls"):
        made["tool_calls"] = calls
    fields.close()
    return made


def _images(fields: Fields) -> list[dict[str, Any]]:
    """Return the images of a message, base64 each, as parts that chat requests have."""
    given = fields.items("images") or []
    if not all(isinstance(data, str) for data in given):
        raise fields.wrong("images", "an array of base64")
    return [{"type": "image_url", "image_url": {"url": data_url(data)}} for data in given]


def _content(text: str, images: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return a message's content: images come before its text."""
    return [*images, {"type": "text", "text": text}] if images else text
