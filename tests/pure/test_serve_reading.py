"""Parsing of requests: what templates and the engine receive."""

from __future__ import annotations

import json

import pytest

from cortiq.errors import OptionError, RequestError, TokenizerError
from cortiq.model.chat import check_messages
from cortiq.model.default_sampling import GENTLE
from cortiq.serve.completion_params import chat_logprobs, model_name, read_params
from cortiq.serve.errors import ApiError, as_api_error
from cortiq.serve.fields import Fields
from cortiq.serve.messages import read_messages, read_tools
from cortiq.tokenizer.detokenizer import Detokenizer
from cortiq.tokenizer.template import render
from cortiq.tokenizer.tokenizer import byte_tokenizer

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def messages(*given):
    return read_messages(Fields({"messages": list(given)}))


def wanted(**given):
    fields = Fields(given)
    return read_params(fields, chat_logprobs(fields), 7)


def test_a_turn_with_a_call_is_as_templates_expect_it():
    """OpenAI has arguments as a JSON text, templates as an object."""
    function = {"name": "now", "arguments": '{"zone": [1, "a"]}'}
    call = {"id": "c1", "type": "function", "function": function}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    first, second = messages(asked, told)
    assert first["tool_calls"][0]["function"] == {"name": "now", "arguments": {"zone": [1, "a"]}}
    assert first["content"] == "" and second == told


@pytest.mark.parametrize(
    ("written", "mapping"),
    [("", {}), ("null", {}), (None, {}), ("{}", {}), ({}, {}), ({"a": None}, {"a": None}),
     ('{"a": "1"}', {"a": "1"}), ("no object", {"arguments": "no object"}),
     ("[1]", {"arguments": "[1]"}), ("[" * 9999, {"arguments": "[" * 9999})],
)  # fmt: skip
@pytest.mark.parametrize("wrapped", [True, False])
def test_arguments_of_earlier_calls_reach_the_template_as_a_mapping(written, mapping, wrapped):
    function = {"name": "now", "arguments": written}
    call = {"type": "function", "function": function} if wrapped else function
    asked = {"role": "assistant", "tool_calls": [call]}
    template = (
        "{% set c = messages[0].tool_calls[0] %}{% set f = c.function or c %}"
        "{% for key, value in f.arguments.items() %}{{ key }}={{ value | tojson }};{% endfor %}"
    )
    expected = "".join(f"{key}={json.dumps(value)};" for key, value in mapping.items())
    read = [check_messages([asked])] + ([messages(asked)] if wrapped else [])
    assert {render(template, conversation) for conversation in read} == {expected}
    assert function["arguments"] is written


def test_parts_are_lines_and_developers_are_systems():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    made = messages({"role": "developer", "content": parts})
    assert made == [{"role": "system", "content": "one\ntwo"}]


@pytest.mark.parametrize(
    ("choice", "offered", "forced"),
    [(None, 1, ()), ("auto", 1, ()), ("none", 0, ()), ("required", 1, ("now",)),
     ({"type": "function", "function": {"name": "now"}}, 1, ("now",))],
)  # fmt: skip
def test_the_choice_of_tools(choice, offered, forced):
    tools = read_tools(Fields({"tools": [TOOL], "tool_choice": choice}))
    assert (len(tools.offered), tools.forced) == (offered, forced)


def test_a_tool_that_is_not_offered_cannot_be_forced():
    choice = {"type": "function", "function": {"name": "other"}}
    with pytest.raises(ApiError, match="names no tool"):
        read_tools(Fields({"tools": [TOOL], "tool_choice": choice}))


def test_seeds_of_any_sign_are_taken_and_no_nucleus_is_the_most_likely_token():
    assert wanted(seed=-1).options.seed == 2**53 - 1
    assert wanted(seed=5).options.seed == 5 and wanted().options.seed is None
    assert wanted(top_p=0, top_k=9).options.top_k == 1
    assert wanted().options.temperature == GENTLE["temperature"]
    assert wanted(logit_bias={"3": -100}).options.logit_bias == {3: -100.0}


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 20}, 20)],
)
def test_log_probabilities_that_are_kept(given, kept):
    assert wanted(**given).top_logprobs == kept


def test_a_field_nobody_read_is_refused_by_its_name_and_the_nearest():
    fields = Fields({"top_logprob": 1, "user": "no effect"})
    read_params(fields, chat_logprobs(fields), 7)
    with pytest.raises(ApiError, match="Did you mean 'top_logprobs'") as caught:
        fields.close()
    assert caught.value.param == "top_logprob"


@pytest.mark.parametrize(
    ("read", "given", "said"),
    [
        (model_name, {}, "'model' is missing: it must be the name of a model listed by /v1/models"),
        (model_name, {"model": ""}, "'model' must be the name of a model .*not ''"),
        (read_messages, {}, "'messages' is missing: it must be an array of at least one message"),
        (read_messages, {"messages": None}, "'messages' is missing"),
        (read_messages, {"messages": [{"content": "a"}]}, r"'messages\[0\].role' is missing"),
        (read_messages, {"messages": [None]}, r"'messages\[0\]' must be an object, not null"),
        (read_messages, {"messages": [{"role": "user", "content": [{}]}]}, "type' is missing"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_to_be_missing(read, given, said):
    with pytest.raises(ApiError, match=said) as caught:
        read(Fields(given))
    assert "None" not in caught.value.message


@pytest.mark.parametrize(
    ("own", "sent", "where"),
    [("messages", "prompt", "/v1/completions"), ("prompt", "messages", "/v1/chat/completions"),
     ("prompt", "input", "/v1/embeddings"), ("input", "messages", "/v1/chat/completions")],
)  # fmt: skip
def test_the_field_of_another_path_points_there(own, sent, where):
    with pytest.raises(ApiError, match=f"go to {where}.$") as caught:
        Fields({sent: "a"}).belongs(own)
    assert (caught.value.status, caught.value.param) == (400, sent)
    Fields({own: "a", sent: None}).belongs(own)


@pytest.mark.parametrize(
    ("error", "said"),
    [(TokenizerError("it is\na base model", where="m", hint="give it a\n raw text"),
      "m: it is a base model. Give it a raw text"),
     (OptionError("top_k", "must be 1", hint="or more"), "top_k must be 1. Or more"),
     (RequestError("Too long!", hint="ask for less"), "Too long! Ask for less"),
     (RequestError("it is empty", where="prompt"), "prompt: it is empty")],
)  # fmt: skip
def test_a_sentence_and_its_hint_are_two_sentences(error, said):
    assert as_api_error(error).message == said


def test_control_tokens_of_markers_are_part_of_the_text():
    tokenizer = byte_tokenizer(320)
    for shown, text in (((), "ab"), ((256,), "a<bos>b")):
        decoder = Detokenizer(tokenizer, continuation=True, shown=shown)
        assert "".join(decoder.add(token) for token in (97, 256, 98, 257)) == text
