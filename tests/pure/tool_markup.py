"""Tool calls in every dialect, well-formed and as models really write them."""

from __future__ import annotations

import json
from collections.abc import Callable

from cortiq.dialects.registry import OWN

DIALECTS = {dialect.name: dialect for dialect in OWN}
SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "b": {"type": "boolean"},
        "o": {"type": "object"},
        "l": {"type": "array"},
        "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}
TOOLS = {"w": SCHEMA, "get_it": SCHEMA, "now": {}}


def as_json(name, arguments, key="arguments"):
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def as_text(value):
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def qwen(name, arguments):
    inner = "".join(f"<parameter={k}>\n{as_text(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<function={name}>\n{inner}</function>"


def glm(name, arguments):
    pairs = (f"<arg_key>{k}</arg_key>\n<arg_value>{as_text(v)}</arg_value>\n"
             for k, v in arguments.items())  # fmt: skip
    return f"{name}\n{''.join(pairs)}"


def minimax(name, arguments):
    inner = "".join(
        f'<parameter name="{k}">{as_text(v)}</parameter>\n' for k, v in arguments.items()
    )
    return f'<invoke name="{name}">\n{inner}</invoke>'


def seed(name, arguments):
    inner = "".join(f"<parameter={k}>{as_text(v)}</parameter>\n" for k, v in arguments.items())
    return f"<function={name}>\n{inner}</function>"


def dsml(name, arguments):
    inner = "".join(
        f'<｜DSML｜parameter name="{k}" string="{str(isinstance(v, str)).lower()}">{as_text(v)}'
        "</｜DSML｜parameter>\n" for k, v in arguments.items()
    )  # fmt: skip
    return f'<｜DSML｜invoke name="{name}">\n{inner}</｜DSML｜invoke>'


def cohere(number, name, arguments):
    return {"tool_call_id": str(number), "tool_name": name, "parameters": arguments}


def gemma(value):
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f'<|"|>{k}<|"|>:{gemma(v)}' for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    return json.dumps(value)


def each(open_, one, close, between="\n") -> Callable[[list], str]:
    """A block for every call."""
    return lambda calls: between.join(f"{open_}{one(*call)}{close}" for call in calls)


def listed(open_, close) -> Callable[[list], str]:
    """A JSON list of all calls."""
    return lambda calls: f"{open_}[{', '.join(as_json(*call) for call in calls)}]{close}"


def block(open_, one, close) -> Callable[[list], str]:
    """All calls in one block."""
    return lambda calls: open_ + "".join(one(*call) for call in calls) + close


def deepseek(name, arguments):
    return (f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}"
            "\n```<｜tool▁call▁end｜>")  # fmt: skip


def deepseek_31(name, arguments):
    return (f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}"
            "<｜tool▁call▁end｜>")  # fmt: skip


def kimi(name, arguments):
    return (f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
            f"{json.dumps(arguments)}<|tool_call_end|>")  # fmt: skip


def harmony(before, behind, end="<|call|>") -> Callable[[list], str]:
    return lambda calls: "<|start|>assistant".join(
        f"{before}{name}{behind}<|message|>{json.dumps(arguments)}{end}"
        for name, arguments in calls
    )


def python(calls):
    return ", ".join(
        f"{n}({', '.join(f'{k}={v!r}' for k, v in given.items())})" for n, given in calls
    )


WRITERS = {
    "hermes": {
        "as it should": each("<tool_call>\n", as_json, "\n</tool_call>"),
        "two in one": block("<tool_call>", lambda *call: as_json(*call) + "\n", "</tool_call>"),
        "not closed before the next": each("<tool_call>\n", as_json, ""),
        "closed twice": each("<tool_call>", as_json, "</tool_call>\n</tool_call>"),
        "never closed": block("<tool_call>", lambda *call: as_json(*call) + "\n", ""),
        "as OpenAI has them": each(
            "<tool_call>", lambda n, a: json.dumps({"type": "function", "function": {
                "name": n, "arguments": json.dumps(a)}}), "</tool_call>"),
        "a bracket forgotten": each("<tool_call>", lambda *c: as_json(*c)[:-1], "</tool_call>"),
        "in a fence": each("<tool_call>\n```json\n", as_json, "\n```\n</tool_call>"),
        "no markers": lambda calls: "\n".join(as_json(*call) for call in calls),
        "no opening": lambda calls: "\n".join(as_json(*call) + "\n</tool_call>" for call in calls),
    },
    "qwen_xml": {
        "as it should": each("<tool_call>\n", qwen, "\n</tool_call>"),
        "two in one": block("<tool_call>\n", qwen, "\n</tool_call>"),
        "no wrapper": each("", qwen, ""),
        "no opening": each("", qwen, "\n</tool_call>"),
        "never closed": block("<tool_call>\n", qwen, ""),
        "closed twice": each("<tool_call>", qwen, "</tool_call></tool_call>"),
        "as Hermes": each("<tool_call>\n", as_json, "\n</tool_call>"),
        "values closed twice": each("<tool_call>\n", lambda *call: qwen(*call).replace(
            "\n</parameter>", "\n</parameter>\n</parameter>"), "\n</tool_call>"),
        "values not closed": each("<tool_call>\n", lambda *call: qwen(*call).replace(
            "\n</parameter>", ""), "\n</tool_call>"),
        "functions not closed": each("<tool_call>\n", lambda *call: qwen(*call).replace(
            "\n</function>", ""), "\n</tool_call>"),
    },
    "glm": {
        "as it should": each("<tool_call>", glm, "</tool_call>"),
        "values not opened": each(
            "<tool_call>", lambda *c: glm(*c).replace("\n<arg_value>", ""), "</tool_call>"),
        "as Hermes": each("<tool_call>\n", as_json, "\n</tool_call>"),
        "keys not closed": each(
            "<tool_call>", lambda *c: glm(*c).replace("</arg_key>", ""), "</tool_call>"),
        "closed twice": each("<tool_call>", glm, "</tool_call></tool_call>"),
    },
    "minimax": {
        "as it should": block("<minimax:tool_call>\n", minimax, "\n</minimax:tool_call>"),
        "no wrapper": each("", minimax, ""),
        "no opening": each("", minimax, "</minimax:tool_call>"),
        "never closed": block("<minimax:tool_call>\n", minimax, ""),
    },
    "mistral": {
        "as it should": each("[TOOL_CALLS]", lambda n, a: f"{n}[ARGS]{json.dumps(a)}", "", ""),
        "a list": listed("[TOOL_CALLS]", ""),
        "no arguments marker": each("[TOOL_CALLS]", lambda n, a: n + json.dumps(a), "", ""),
        "with numbers": each(
            "[TOOL_CALLS]", lambda n, a: f"{n}[CALL_ID]c1[ARGS]{json.dumps(a)}", "", ""),
        "no opening": listed("", ""),
    },
    "llama": {
        "as it should": lambda calls: "<|python_tag|>" + "; ".join(
            as_json(*call, "parameters") for call in calls),
        "no tag": lambda calls: "; ".join(as_json(*call, "parameters") for call in calls),
        "tags between": each("<|python_tag|>", as_json, ""),
    },
    "deepseek": {
        "as it should": block("<｜tool▁calls▁begin｜>", deepseek, "<｜tool▁calls▁end｜>"),
        "3.1": block("<｜tool▁calls▁begin｜>", deepseek_31, "<｜tool▁calls▁end｜>"),
        "never closed": block("<｜tool▁calls▁begin｜>", deepseek_31, ""),
        "no opening": block("", deepseek, "<｜tool▁calls▁end｜>"),
        "calls not closed": block("<｜tool▁calls▁begin｜>", lambda *call: deepseek(*call).replace(
            "<｜tool▁call▁end｜>", ""), "<｜tool▁calls▁end｜>"),
    },
    "kimi": {
        "as it should": block(
            "<|tool_calls_section_begin|>", kimi, "<|tool_calls_section_end|>"),
        "singular": block("<|tool_call_section_begin|>", kimi, "<|tool_call_section_end|>"),
        "no section": block("", kimi, ""),
        "never closed": block("<|tool_calls_section_begin|>", kimi, ""),
        "texts": block("<|tool_calls_section_begin|>", lambda n, a: (
            f"<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>"
            f"{json.dumps(json.dumps(a))}<|tool_call_end|>"), "<|tool_calls_section_end|>"),
    },
    "harmony": {
        "as it should": harmony("<|channel|>commentary to=functions.", " <|constrain|>json"),
        "in the role": harmony(" to=functions.", "<|channel|>commentary json"),
        "to the thinking": harmony("<|channel|>analysis to=functions.", " code"),
        "no namespace": harmony("<|channel|>commentary to=", " <|constrain|>json"),
        "ended": harmony("<|channel|>commentary to=functions.", " json", "<|end|>"),
    },
    "pythonic": {
        "as it should": lambda c: f"<|tool_call_start|>[{python(c)}]<|tool_call_end|>",
        "objects": listed("<|tool_call_start|>", "<|tool_call_end|>"),
        "JSON's words": lambda calls: f"<|tool_call_start|>[{python(calls)}]<|tool_call_end|>"
        .replace("=True", "=true").replace("=None", "=null"),
        "never closed": lambda calls: f"<|tool_call_start|>[{python(calls)}]",
    },
    "gemma": {
        "as it should": each(
            "<|tool_call>", lambda n, a: f"call:{n}{gemma(a)}", "<tool_call|>", ""),
        "two in one": block("<|tool_call>", lambda n, a: f"call:{n}{gemma(a)}", "<tool_call|>"),
        "never closed": block("<|tool_call>", lambda n, a: f"call:{n}{gemma(a)}", ""),
        "no opening": block("", lambda n, a: f"call:{n}{gemma(a)}", "<tool_call|>"),
    },
    "nemotron": {
        "as it should": listed("<TOOLCALL>", "</TOOLCALL>"),
        "never closed": listed("<TOOLCALL>", ""),
        "no list": block("<TOOLCALL>", lambda *call: as_json(*call) + ",", "</TOOLCALL>"),
    },
    "hunyuan": {
        "as it should": listed("<tool_calls>", "</tool_calls>"),
        "never closed": listed("<tool_calls>", ""),
        "no opening": listed("", "</tool_calls>"),
    },
    "seed": {
        "as it should": each("<seed:tool_call>\n", seed, "\n</seed:tool_call>"),
        "two in one": block("<seed:tool_call>\n", seed, "\n</seed:tool_call>"),
        "no wrapper": each("", seed, ""),
        "never closed": block("<seed:tool_call>\n", seed, ""),
    },
    "dsml": {
        "as it should": block("<｜DSML｜function_calls>\n", dsml, "\n</｜DSML｜function_calls>"),
        "no wrapper": each("", dsml, ""),
        "never closed": block("<｜DSML｜function_calls>\n", dsml, ""),
    },
    "dsml_4": {
        "as it should": block("<｜DSML｜tool_calls>\n", dsml, "\n</｜DSML｜tool_calls>"),
        "no opening": each("", dsml, "</｜DSML｜tool_calls>"),
    },
    "olmo": {
        "as it should": lambda calls: "<function_calls>" + "\n".join(
            python([call]) for call in calls) + "</function_calls>",
        "a list": lambda calls: f"<function_calls>\n[{python(calls)}]\n</function_calls>",
        "never closed": lambda calls: "<function_calls>" + "\n".join(
            python([call]) for call in calls),
    },
    "cohere": {
        "as it should": lambda calls: "<|START_ACTION|>" + json.dumps(
            [cohere(n, *call) for n, call in enumerate(calls)], indent=4) + "<|END_ACTION|>",
        "never closed": lambda calls: "<|START_ACTION|>" + json.dumps(
            [cohere(n, *call) for n, call in enumerate(calls)]),
        "other keys": listed("<|START_ACTION|>", "<|END_ACTION|>"),
    },
    "apertus": {
        "as it should": lambda calls: "<|tools_prefix|>" + json.dumps(
            [{name: given} for name, given in calls]) + "<|tools_suffix|>",
        "never closed": lambda calls: "<|tools_prefix|>" + json.dumps(
            [{name: given} for name, given in calls]),
        "with names": listed("<|tools_prefix|>", "<|tools_suffix|>"),
    },
    "internlm": {
        "as it should": each("<|action_start|><|plugin|>\n", as_json, "<|action_end|>"),
        "a list": listed("<|action_start|><|plugin|>", "<|action_end|>"),
    },
    "granite": {
        "as it should": listed("<|tool_call|>", ""),
        "no list": block("<|tool_call|>", lambda *call: as_json(*call) + "\n", ""),
    },
}  # fmt: skip
"""Dialect -> way of writing -> calls to text. All of them say the same calls."""
CASES = [(name, way) for name, ways in WRITERS.items() for way in ways]
