"""Tool calls and thinking: told apart from the text, however the answer arrives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortiq.dialects.dialect import ToolCall, ToolDialect, Unfinished
from cortiq.dialects.registry import OWN, dialect_of
from cortiq.dialects.splitter import AnswerText, Splitter, ThinkingText
from cortiq.dialects.thinking import HARMONY, TAGS, thinking_of

TOOLS = {
    "weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {},
}
CALL = ToolCall("weather", {"city": "Bern", "days": 3})
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern", "days": 3}}\n'
    "</tool_call>",
    "qwen_xml": "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Bern", "days": 3}',
    "llama": '<|python_tag|>{"name": "weather", "parameters": {"city": "Bern", "days": 3}}',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
    '```json\n{"city": "Bern", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    '<|tool_call_argument_begin|>{"city": "Bern", "days": 3}<|tool_call_end|>'
    "<|tool_calls_section_end|>",
    "pythonic": '<|tool_call_start|>[weather(city="Bern", days=3)]<|tool_call_end|>',
    "harmony": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Bern", "days": 3}<|call|>',
    "minimax": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Bern'
    '</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "gemma": '<|tool_call>call:weather{city:<|"|>Bern<|"|>,days:3}<tool_call|>',
    "nemotron": '<TOOLCALL>[{"name": "weather", "arguments": {"city": "Bern", "days": 3}}]'
    "</TOOLCALL>",
    "hunyuan": '<tool_calls>[{"name": "weather", "arguments": {"city": "Bern", "days": 3}}]'
    "</tool_calls>",
    "seed": "<seed:tool_call>\n<function=weather>\n<parameter=city>Bern</parameter>\n"
    "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
    "dsml": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Bern</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "dsml_4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Bern</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "olmo": '<function_calls>weather(city="Bern", days=3)</function_calls>',
    "cohere": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
    '{"city": "Bern", "days": 3}}\n]<|END_ACTION|>',
    "apertus": '<|tools_prefix|>[{"weather": {"city": "Bern", "days": 3}}]<|tools_suffix|>',
    "internlm": '<|action_start|><|plugin|>\n{"name": "weather", "parameters": {"city": "Bern", '
    '"days": 3}}<|action_end|>',
    "granite": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern", "days": 3}}]',
}
DIALECTS = {dialect.name: dialect for dialect in OWN}


def split(text, cuts=(), **given):
    """The parts of an answer that arrives in these pieces, neighbours of one kind joined."""
    splitter, made, start = Splitter(tools=TOOLS, **given), [], 0
    for stop in [*sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]:
        made += splitter.feed(text[start:stop])
        start = stop
    joined = []
    for part in [*made, *splitter.finish()]:
        if joined and type(part) is type(joined[-1]) and not isinstance(part, ToolCall):
            joined[-1] = type(part)(joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined


def test_every_dialect_has_a_sample():
    assert set(WRITTEN) == set(DIALECTS)


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_calls_are_found_however_the_answer_is_cut(name, cuts):
    text = "Let me see. " + WRITTEN[name]
    assert split(text, cuts, dialect=DIALECTS[name]) == [AnswerText("Let me see. "), CALL]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_call_inside_thinking_is_thinking(name):
    text = f"<think>\nmaybe {WRITTEN[name]} no</think>\n\nHello"
    parts = split(text, dialect=DIALECTS[name], thinking=TAGS)
    assert parts == [ThinkingText(f"maybe {WRITTEN[name]} no"), AnswerText("Hello")]
    opened = split(text.removeprefix("<think>"), dialect=DIALECTS[name], thinking=TAGS, opened=True)
    assert opened == parts


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=15, deadline=None)
@given(junk=st.text("<>{}[]()\"'=:,/| abc\n", max_size=30), cut=st.integers(0, 60))
def test_what_is_no_call_comes_back_as_text_letter_by_letter(name, junk, cut):
    dialect = DIALECTS[name]
    text = f"so {dialect.opens}!{junk}{dialect.closes} on"
    block = f"{dialect.opens}!{junk}{dialect.closes}"
    try:
        dialect.calls(block, TOOLS, final=not dialect.closes)
    except ValueError:
        parts = split(text, (cut,), dialect=dialect)
        assert parts == [AnswerText(text)]


@settings(max_examples=60, deadline=None)
@given(text=st.text("<think>/ab{}\n ", max_size=40), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_pieces_decide_nothing_and_nothing_is_lost(text, cuts):
    given = {"thinking": TAGS, "dialect": DIALECTS["hermes"]}
    parts = split(text, cuts, **given)
    assert parts == split(text, **given)
    if "think>" not in text:
        assert "".join(part.text for part in parts) == text


def test_channels_of_harmony_are_thinking_calls_and_text():
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I look.<|end|><|start|>assistant" + WRITTEN["harmony"].removesuffix("<|call|>")
    )
    parts = split(text, range(0, 200, 7), thinking=HARMONY, dialect=DIALECTS["harmony"])
    assert parts == [ThinkingText("hm"), AnswerText("I look."), CALL]


def test_an_answer_that_is_an_offered_tools_object_is_a_call():
    written = json.dumps({"name": "weather", "parameters": CALL.arguments})
    assert split(f" {written}\n", (3, 9)) == [CALL]
    assert split('{"name": "other"}', (3,)) == [AnswerText('{"name": "other"}')]


def test_without_tools_nothing_is_a_call():
    splitter = Splitter(dialect=DIALECTS["hermes"])
    text = WRITTEN["hermes"]
    assert "".join(part.text for part in splitter.feed(text) + splitter.finish()) == text


def test_types_of_arguments_come_from_the_schema():
    text = WRITTEN["qwen_xml"].replace("Bern", "3012")
    (call,) = split(text, dialect=DIALECTS["qwen_xml"])
    assert call.arguments == {"city": "3012", "days": 3}


def test_a_plugins_closing_marker_inside_an_argument():
    """`parse` says that the call goes on; at the end of the answer what was opened is text."""

    def parse(text):
        if text.count("'") % 2:
            raise Unfinished("inside a string")
        return [ToolCall("now", {"a": text})]

    mine = ToolDialect("mine", lambda template: True, "<<", ">>", parse)
    assert split("a <<'>>'>> b", (5,), dialect=mine) == [
        AnswerText("a "), ToolCall("now", {"a": "'>>'"}), AnswerText(" b"),
    ]  # fmt: skip
    assert split("a <<'>> b <<c>>", dialect=mine) == [
        AnswerText("a <<'>> b "), ToolCall("now", {"a": "c"}),
    ]  # fmt: skip


def test_gemmas_values_are_read_whole():
    written = '{a:[1, <|"|>x, {y}<|"|>],<|"|>b c<|"|>: {d:true,e:null}, f:{}, g:-1.5e3}'
    (call,), _ = DIALECTS["gemma"].calls(f"<|tool_call>call:f{written}<tool_call|>", {}, False)
    expected = {"a": [1, "x, {y}"], "b c": {"d": True, "e": None}, "f": {}, "g": -1500.0}
    assert call == ToolCall("f", expected)


def test_a_templates_own_words_name_its_dialect():
    for name, marker in (("glm", "<arg_key>"), ("qwen_xml", "<function="), ("hermes", "")):
        assert dialect_of(f"{{{{ tools }}}} <tool_call> {marker}").name == name
    assert dialect_of("{{ tools }} <seed:tool_call>\n<function=").name == "seed"
    assert dialect_of("no such thing") is None and dialect_of(None) is None
    mine = ToolDialect("mine", lambda template: True, "<<", ">>", lambda text: [])
    assert dialect_of("{{ tools }} <tool_call>", [mine]) is mine
    assert thinking_of("x </think> y") == TAGS and thinking_of("plain") is None


def test_an_answer_in_tags_of_its_own_is_its_text():
    hunyuan = thinking_of("{{ c.split('</think>') }} {{ c.split('</answer>') }}")
    text = "<think>\nhm\n</think>\n<answer>\nYes.\n</answer>"
    for cuts in ((), range(0, 60, 3)):
        parts = split(text, cuts, thinking=hunyuan)
        assert [type(p) for p in parts] == [ThinkingText, AnswerText]
        assert (parts[0].text.strip(), parts[1].text.strip()) == ("hm", "Yes.")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("</seed:think>", "<seed:think>hm</seed:think>Yes."),
        ("<|END_THINKING|>", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes."
         "<|END_RESPONSE|>"),
    ],
)  # fmt: skip
def test_thinking_of_families_with_markers_of_their_own(template, text):
    parts = split(text, range(0, 60, 5), thinking=thinking_of(template))
    assert parts == [ThinkingText("hm"), AnswerText("Yes.")]
