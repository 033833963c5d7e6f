"""Tool calls however models write them: the calls, else the text, and never other arguments."""

from __future__ import annotations

import json

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tool_markup import CASES, DIALECTS, TOOLS, WRITERS

from cortiq.dialects.dialect import ToolCall, coerce_arguments
from cortiq.dialects.splitter import AnswerText, Splitter
from cortiq.dialects.thinking import HARMONY

MARKED = {"qwen_xml", "glm", "minimax", "seed", "dsml", "dsml_4"}
"""Dialects whose values are texts that nothing escapes."""
NASTY = [
    "</tool_call>", '"}', "\\", "<|call|>", "<tool_call|>", "<｜tool▁call▁end｜>", "; {", "\n",
    "[ARGS]", "<|tool_call_end|>", "}}", "]", "'", "é", "<|tool_calls_section_end|>", "```",
    "<tool_call>", "12",
]  # fmt: skip
words = st.lists(st.sampled_from([*NASTY, " a", "b "]), max_size=5).map("".join)
plain = st.text("ab1 .-é\n", max_size=12).map(lambda text: text.strip("\n"))
values = st.recursive(
    st.one_of(words, st.integers(-(10**20), 10**20), st.booleans(), st.none()),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("pq"), inner),
    max_leaves=4,
)


def arguments(texts):
    return st.fixed_dictionaries({}, optional={
        "s": texts, "u": texts, "n": st.integers(-(10**18), 10**18), "b": st.booleans(),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "o": st.dictionaries(st.sampled_from("pq"), values, max_size=2),
        "l": st.lists(values, max_size=2),
    })  # fmt: skip


def some_calls(texts):
    one = st.tuples(st.sampled_from(["w", "get_it"]), arguments(texts))
    return st.lists(one, min_size=1, max_size=3)


def parts(name, pieces, tools=TOOLS):
    thinking = HARMONY if name == "harmony" else None
    splitter, made = Splitter(thinking, DIALECTS[name], tools), []
    for part in [p for piece in pieces for p in splitter.feed(piece)] + splitter.finish():
        if isinstance(part, AnswerText) and made and isinstance(made[-1], AnswerText):
            part = AnswerText(made.pop().text + part.text)
        made.append(part)
    return made


def calls_of(made):
    return [(p.name, p.arguments) for p in made if isinstance(p, ToolCall)]


def test_every_dialect_has_its_ways():
    assert set(WRITERS) == set(DIALECTS)
    assert all("as it should" in ways for ways in WRITERS.values())


@pytest.mark.parametrize(("name", "way"), CASES)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_calls_that_are_written_are_read(name, way, data):
    """And nothing but white space is left of them; with words before, where an answer may have."""
    calls = data.draw(some_calls(plain if name in MARKED else words))
    if name == "gemma":
        calls = [c for c in calls if '<|"|>' not in str(c)]
    if way in ("values not closed", "functions not closed"):
        calls = [(n, a or {"n": 1}) for n, a in calls]
    text = WRITERS[name][way](calls)
    made = parts(name, [text])
    assert calls_of(made) == calls
    assert not "".join(p.text for p in made if isinstance(p, AnswerText)).strip(" \n,;")
    if not way.startswith("no ") and name != "harmony":
        assert parts(name, ["So: " + text])[0] == AnswerText("So: ")
        assert calls_of(parts(name, ["So: " + text])) == calls


@pytest.mark.parametrize(("name", "way"), CASES)
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_pieces_decide_nothing_at_any_split_point(name, way, data):
    calls = data.draw(some_calls(words))[:2]
    text = WRITERS[name][way](calls) + data.draw(st.sampled_from(["", " on", "\n</tool_call> <"]))
    whole = parts(name, [text])
    assert parts(name, text) == whole
    for at in range(len(text)):
        assert parts(name, [text[:at], text[at:]]) == whole


@pytest.mark.parametrize(("name", "way"), CASES)
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_an_answer_that_is_cut_off_gives_whole_calls_or_text(name, way, data):
    calls = data.draw(some_calls(plain if name in MARKED else words))[:2]
    text = WRITERS[name][way](calls)
    whole = calls_of(parts(name, [text]))
    for stop in range(len(text)):
        made = calls_of(parts(name, [text[:stop]]))
        assert made == whole[: len(made)]


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_is_no_call_loses_no_letter(name, data):
    """Broken markup: pieces of a call left out, doubled or mixed up."""
    way = data.draw(st.sampled_from(list(WRITERS[name])))
    text = WRITERS[name][way](data.draw(some_calls(words))[:2])
    for _ in range(data.draw(st.integers(1, 3))):
        at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(1, 12))
        piece = data.draw(st.sampled_from(["", "", text[at : at + length] * 2, "<", '"', "\n"]))
        text = text[:at] + piece + text[at + length :]
    whole = parts(name, [text])
    assert parts(name, text) == whole
    if not calls_of(whole) and name != "harmony":
        assert "".join(part.text for part in whole) == text


IN_VALUES = [
    "A block ends with </tool_call> here.", "A value ends with </parameter> here.",
    "a </arg_value> b", "</function> and more", "if a </ b > c", "<parameter=", "<tool_call> opens",
    "Ex:\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\nso",
    'Ex: <invoke name="f"><parameter name="x">1</parameter></invoke> so', "</invoke> x",
    "a</minimax:tool_call> b", "<function=w> b", "</function>\n</tool_call>\nmore",
    "<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call> so", "\n\nx\n\n", "",
    "</parameter>\n</parameter>x",
]  # fmt: skip


@pytest.mark.parametrize("value", IN_VALUES)
@pytest.mark.parametrize("name", sorted(MARKED))
def test_tags_inside_values_are_text(name, value):
    calls = [("w", {"s": value, "n": 3}), ("w", {"s": "b", "u": value})]
    text = WRITERS[name]["as it should"](calls)
    assert calls_of(parts(name, [text])) == calls
    assert parts(name, text) == parts(name, [text])


@pytest.mark.parametrize(
    ("name", "text"),
    [("harmony", "<|channel|>commentary to=functions.now json<|message|><|call|>"),
     ("kimi", "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|><|tool_call_end|>"),
     ("hermes", '<tool_call>{"name": "now"}</tool_call>'),
     ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>'),
     ("qwen_xml", "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
     ("glm", "<tool_call>now</tool_call>"),
     ("pythonic", "<|tool_call_start|>[now()]<|tool_call_end|>"),
     ("gemma", "<|tool_call>call:now{}<tool_call|>"), ("mistral", "[TOOL_CALLS]now[ARGS]{}")],
)  # fmt: skip
def test_calls_without_arguments(name, text):
    assert parts(name, [text]) == [ToolCall("now", {})] == parts(name, text)


AMBIGUOUS = [
    ("qwen_xml", "<tool_call><function=w><parameter=s>x</parameter></parameter></function>"
                 "</tool_call>"),
    ("qwen_xml", "<tool_call><function=w><parameter=s>x</parameter><parameter=s>y</parameter>"
                 "</function></tool_call>"),
    ("qwen_xml", "<tool_call><function=w><parameter=s>x"),
    ("qwen_xml", "<tool_call><function=w><parameter=s>x</parameter>"),
    ("qwen_xml", "write <function=NAME> and </function>"),
    ("hermes", '<tool_call>{"name":"w","s":"1"}</tool_call>'),
    ("hermes", '<tool_call>{"name":"w","arguments":{"s":"1"},"parameters":{"s":"2"}}</tool_call>'),
    ("hermes", '<tool_call>{"name":"w","arguments":{"s":"1","s":"2"}}</tool_call>'),
    ("hermes", '<tool_call>{"name":"w","arguments":{"x":NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name":"w","arguments":{"x":1e999}}</tool_call>'),
    ("hermes", '<tool_call>{"name":"w","arguments":{"s":"\\ud800"}}</tool_call>'),
    ("hermes", '<tool_call>{"name":"w","arguments":[1]}</tool_call>'),
    ("pythonic", "<|tool_call_start|>[w(s=1, s=2)]<|tool_call_end|>"),
    ("pythonic", "<|tool_call_start|>[w(s={1, 2})]<|tool_call_end|>"),
    ("pythonic", "<|tool_call_start|>[w(s=b'x')]<|tool_call_end|>"),
    ("pythonic", "<|tool_call_start|>[w(x=1e999)]<|tool_call_end|>"),
    ("gemma", "<|tool_call>call:w{x:NaN}<tool_call|>"),
    ("gemma", "<|tool_call>call:w{n:1,n:2}<tool_call|>"),
    ("kimi", "<|tool_call_begin|>functions.unknown:0<|tool_call_argument_begin|>{}"
             "<|tool_call_end|>"),
    ("harmony", "<|channel|>commentary to=browser.search<|message|>{}<|call|>"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), AMBIGUOUS)
def test_what_may_mean_two_things_is_text(name, text):
    assert parts(name, [text]) == [AnswerText(text)] == parts(name, text)


SCHEMAS = {
    "string": {"type": "string"}, "either": {"type": ["string", "integer"]}, "nothing": {},
    "union": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "const": {"const": "7"},
    "enum": {"enum": ["1", "2"]}, "mixed": {"enum": [1, "2", None, True]}, "any": True,
    "ref": {"$ref": "#/$defs/S"}, "loop": {"$ref": "#/$defs/L"}, "lost": {"$ref": "#/nowhere"},
    "integer": {"type": "integer"}, "number": {"type": "number"}, "boolean": {"type": "boolean"},
    "null": {"type": "null"}, "maybe": {"type": ["boolean", "null"]}, "array": {"type": "array"},
    "all": {"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]},
    "one": {"oneOf": [{"$ref": "#/$defs/I"}, {"type": "null"}]}, "bare": {"items": {}},
    "object": {"properties": {"a": {}}}, "numbers": {"enum": [1, 2.5]},
}  # fmt: skip
DEFINITIONS = {"S": {"type": "string"}, "I": {"type": "integer"}, "L": {"$ref": "#/$defs/L"}}
EXPECTED = {
    "12345": {"integer": 12345, "number": 12345, "all": 12345, "one": 12345},
    "1": {"integer": 1, "number": 1, "all": 1, "one": 1, "mixed": 1, "numbers": 1},
    "2": {"integer": 2, "number": 2, "all": 2, "one": 2},
    "140.0": {"integer": 140, "number": 140.0, "all": 140, "one": 140},
    "2.5": {"number": 2.5, "numbers": 2.5},
    "True": {"boolean": True, "maybe": True, "mixed": True},
    "false": {"boolean": False, "maybe": False},
    "null": {"null": None, "maybe": None, "one": None, "mixed": None},
    "None": {"null": None, "maybe": None, "one": None, "mixed": None},
    "NaN": {}, "1e999": {}, "Infinity": {}, "": {}, '"a"': {}, "[1": {}, "01": {},
    "[1]": {"array": [1], "bare": [1]}, '{"a": 1}': {"object": {"a": 1}},
}  # fmt: skip


@pytest.mark.parametrize("text", EXPECTED)
def test_a_text_stays_one_unless_the_schema_forbids_strings(text):
    """All of a text's readings: where nothing is listed it stays as the model wrote it."""
    schema = {"type": "object", "properties": SCHEMAS, "$defs": DEFINITIONS}
    for shape in (schema, {"$ref": "#/$defs/Args", "$defs": {**DEFINITIONS, "Args": {
            "properties": SCHEMAS}}}, {"allOf": [schema], "$defs": DEFINITIONS}):  # fmt: skip
        given = dict.fromkeys([*SCHEMAS, "unknown"], text)
        made = coerce_arguments(ToolCall("f", given), shape).arguments
        expected = given | EXPECTED[text]
        assert json.dumps(made) == json.dumps(expected)
        for key, value in expected.items():
            assert type(made[key]) is type(value)


def test_a_schema_that_doubles_is_looked_at_in_bounds():
    definitions = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)}
    schema = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}
    assert coerce_arguments(ToolCall("f", {"a": "1"}), schema).arguments == {"a": "1"}


def test_markers_without_end_are_read_in_bounds(monkeypatch):
    """An answer that opens and closes calls forever costs a multiple of its length, not the square
    of it.
    """
    read, dialect = [], DIALECTS["qwen_xml"]
    whole = type(dialect).calls

    def counting(self, text, tools, final):
        read.append(len(text))
        return whole(self, text, tools, final)

    monkeypatch.setattr(type(dialect), "calls", counting)
    monkeypatch.setattr("cortiq.dialects.splitter.MOST_READ", 100_000)
    text = "<tool_call><function=w><parameter=s></tool_call>" * 500
    assert parts("qwen_xml", [text]) == [AnswerText(text)]
    assert sum(read) <= 100_000


HEADS = {
    "harmony": "<|channel|>commentary to=w",
    "deepseek": "<｜tool▁call▁begin｜>",
    "kimi": "<|tool_call_begin|>",
    "mistral": "[TOOL_CALLS]w",
}


@pytest.mark.parametrize("filling", [" ", "w", "w "])
@pytest.mark.parametrize("name", HEADS)
def test_a_long_header_is_divided_in_one_way(name, filling):
    """A run in a header costs its length, not a power of it: 4,000 spaces would never end."""
    text = HEADS[name] + filling * 4_000 + DIALECTS[name].closes
    assert not any(isinstance(part, ToolCall) for part in parts(name, [text]))
