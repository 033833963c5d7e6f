"""Responses, Messages and Ollama's API, asked by their own clients: one answer in four forms."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import anthropic
import ollama
import openai
import pytest
from serving import TINY, serving

from cortiq.dialects.registry import OWN
from cortiq.dialects.splitter import Splitter
from cortiq.dialects.thinking import thinking_of
from cortiq.engine.statistics import Statistics
from cortiq.options import GenerateOptions
from cortiq.serve import messages_request, ollama_request, responses_request
from cortiq.serve.errors import ApiError, shutting_down
from cortiq.serve.fields import Fields
from cortiq.serve.generation_job import ChoiceUpdate
from cortiq.serve.messages_writer import MessagesWriter
from cortiq.serve.ollama_writer import OllamaWriter
from cortiq.serve.responses_writer import ResponsesWriter
from cortiq.tokenizer.tokenizer import byte_tokenizer

HELLO = [{"role": "user", "content": "hello"}]
PARAMETERS = {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 5}},
    "required": ["city"], "additionalProperties": False,
}  # fmt: skip
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
RESPONSES_TOOL = {"type": "function", **FUNCTION}
MESSAGES_TOOL = {"name": "weather", "description": "The weather.", "input_schema": PARAMETERS}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("apis"), "--api-key", "k") as running:
        yield running


@pytest.fixture(scope="module")
def open_ai(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)


@pytest.fixture(scope="module")
def claude(server):
    return anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0)


@pytest.fixture(scope="module")
def llama(server):
    return ollama.Client(host=server.url, headers={"authorization": "Bearer k"})


@pytest.fixture(scope="module")
def expected(open_ai):
    made = open_ai.chat.completions.create(
        model=TINY, messages=HELLO, max_completion_tokens=10, temperature=0
    )
    return made.choices[0].message.content, made.usage


def test_responses_is_the_same_answer(open_ai, expected):
    given = {"model": TINY, "input": "hello", "max_output_tokens": 10, "temperature": 0}
    made = open_ai.responses.create(store=False, **given)
    assert made.output_text == expected[0]
    assert made.status == "incomplete" and made.incomplete_details.reason == "max_output_tokens"
    assert made.usage.input_tokens == expected[1].prompt_tokens
    assert made.usage.output_tokens == 10 and made.store is False
    events = list(open_ai.responses.create(stream=True, **given))
    final, last = events[-1].response, events[-1].type
    assert last == "response.incomplete" and final.output_text == expected[0]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(pieces) == expected[0]


def test_messages_is_the_same_answer(claude, expected):
    given = {"model": TINY, "messages": HELLO, "max_tokens": 10, "extra_body": {"temperature": 0}}
    made = claude.messages.create(**given)
    assert (made.content[0].text, made.stop_reason) == (expected[0], "max_tokens")
    used = made.usage
    assert used.input_tokens + used.cache_read_input_tokens == expected[1].prompt_tokens
    with claude.messages.stream(**given) as stream:
        assert "".join(stream.text_stream) == expected[0]
        assert stream.get_final_message().usage.output_tokens == 10
    counted = claude.messages.count_tokens(model=TINY, messages=HELLO)
    assert counted.input_tokens == expected[1].prompt_tokens
    stop = expected[0][4]
    cut = claude.messages.create(**given, stop_sequences=["never", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert [one.id for one in claude.models.list()] == [TINY]


def test_a_final_answer_is_continued_in_every_form(claude, llama, open_ai):
    turns = [*HELLO, {"role": "assistant", "content": "It is"}]
    given = {"model": TINY, "messages": turns, "max_tokens": 6}
    extra = {"temperature": 0, "continue_final_message": True}
    made = open_ai.chat.completions.create(**given, extra_body=extra).choices[0].message.content
    said = claude.messages.create(**given, extra_body={"temperature": 0}).content[0].text
    answer = llama.chat(TINY, messages=turns, options={"num_predict": 6, "temperature": 0})
    assert made == said == answer.message.content


def test_ollama_is_the_same_answer(llama, expected):
    options = {"num_predict": 10, "temperature": 0, "num_ctx": 64, "mirostat": 0, "tfs_z": 1.0}
    made = llama.chat(TINY, messages=HELLO, options=options)
    assert (made.message.content, made.done_reason) == (expected[0], "length")
    assert (made.prompt_eval_count, made.eval_count) == (expected[1].prompt_tokens, 10)
    pieces = list(llama.chat(f"{TINY}:latest", messages=HELLO, options=options, stream=True))
    assert "".join(piece.message.content for piece in pieces) == expected[0]
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[0].model == f"{TINY}:latest"
    without = [{**HELLO[0], "images": []}]  # as litellm sends it
    assert llama.chat(TINY, without, options=options).message.content == expected[0]
    with pytest.raises(ollama.ResponseError, match="only text is supported"):
        llama.chat(TINY, [{**HELLO[0], "images": [b"x"]}])
    assert llama.generate(TINY, "hello", options=options).response == expected[0]
    raw = llama.generate(TINY, "hello", raw=True, options=options).response
    assert raw != expected[0] and raw


def test_what_ollamas_clients_ask_about_models(llama, open_ai):
    (listed,), (running,) = llama.list().models, llama.ps().models
    assert listed.model == running.model == TINY and listed.size > 0 and len(listed.digest) == 64
    shown = llama.show(TINY)
    assert "completion" in shown.capabilities and "tools" in shown.capabilities
    assert "temperature 0" in shown.parameters and shown.details.family == "qwen3"
    vectors = llama.embed(TINY, ["one text", "another"]).embeddings
    own = open_ai.embeddings.create(model=TINY, input=["one text", "another"]).data
    assert [list(vector) for vector in vectors] == [one.embedding for one in own]
    assert llama.chat(TINY, messages=[]).done_reason == "load"
    assert llama.generate(TINY).done_reason == "load"


def test_a_call_and_its_result_go_around_in_every_form(open_ai, claude, llama):
    """The conversation with the call has the same tokens in every API."""
    given = {"model": TINY, "max_output_tokens": 120, "temperature": 0, "tools": [RESPONSES_TOOL]}
    made = open_ai.responses.create(input="hello", tool_choice="required", **given)
    (call,) = made.output
    assert (call.type, call.name, made.status) == ("function_call", "weather", "completed")
    city = json.loads(call.arguments)["city"]
    turns = [*HELLO, call.model_dump(exclude_none=True)]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    after = open_ai.responses.create(input=[*turns, output], **given)

    ask = {
        "model": TINY,
        "max_tokens": 120,
        "extra_body": {"temperature": 0},
        "tools": [MESSAGES_TOOL],
    }
    said = claude.messages.create(messages=HELLO, tool_choice={"type": "any"}, **ask)
    (used,) = said.content
    assert (said.stop_reason, used.name, used.input) == ("tool_use", "weather", {"city": city})
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "rain"}
    answer = {"role": "assistant", "content": [used.model_dump(exclude_none=True)]}
    then = claude.messages.create(
        messages=[*HELLO, answer, {"role": "user", "content": [result]}], **ask
    )
    assert "".join(block.text for block in then.content) == after.output_text
    turns = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "weather", "arguments": {"city": city}}}]},
        {"role": "tool", "content": "rain", "tool_name": "weather"}]  # fmt: skip
    last = llama.chat(TINY, messages=turns, tools=[CHAT_TOOL],
                      options={"temperature": 0, "num_predict": 120})  # fmt: skip
    assert last.message.content == after.output_text
    assert last.prompt_eval_count == after.usage.input_tokens


def test_formats_and_thinking_reach_the_model(open_ai, claude, llama):
    digit = {"type": "integer", "maximum": 9, "minimum": 1}
    schema = {"type": "object", "properties": {"n": digit}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    made = open_ai.responses.create(model=TINY, input="hello", temperature=0, text=form)
    assert set(json.loads(made.output_text)) == {"n"}
    said = llama.chat(TINY, messages=HELLO, format=schema, options={"temperature": 0})
    assert json.loads(said.message.content) == json.loads(made.output_text)
    think = {"type": "enabled", "budget_tokens": 1024}
    thought = claude.messages.create(model=TINY, messages=HELLO, max_tokens=8, thinking=think)
    assert [block.type for block in thought.content] == ["thinking"]
    assert llama.chat(TINY, messages=HELLO, think=True, options={"num_predict": 8}).message.thinking
    reasoned = open_ai.responses.create(
        model=TINY, input="hello", max_output_tokens=8,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )  # fmt: skip
    assert reasoned.output[0].type == "reasoning" and reasoned.output[0].content[0].text
    assert reasoned.usage.output_tokens_details.reasoning_tokens > 0


def test_errors_are_of_the_classes_that_each_client_looks_for(server, open_ai, claude, llama):
    with pytest.raises(anthropic.NotFoundError, match="does not exist here"):
        claude.messages.create(model="other", messages=HELLO, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        claude.post("/v1/messages", body={"model": TINY, "messages": HELLO}, cast_to=object)
    other = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        other.messages.create(model=TINY, messages=HELLO, max_tokens=1)
    with pytest.raises(ollama.ResponseError, match="does not exist here") as caught:
        llama.chat("other", messages=HELLO)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match=r"options\.mirostat"):
        llama.chat(TINY, messages=HELLO, options={"mirostat": 2})
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        open_ai.responses.create(model=TINY, input="a", previous_response_id="r")


# Translations, each beside the chat request that asks the same.

IMAGE = {"type": "image", "source": {"type": "base64", "data": ""}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_items_of_one_answer_are_one_message():
    items = [
        {"role": "developer", "content": "short"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}],
         "content": [{"type": "reasoning_text", "text": "t"}], "encrypted_content": None},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
    ]  # fmt: skip
    second = {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    made = responses_request.as_chat(Fields({"model": "m", "input": items, "instructions": "i"}))
    assert made["messages"] == [
        {"role": "system", "content": "i"}, {"role": "developer", "content": "short"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "reasoning_content": "t", "content": "b",
         "tool_calls": [CALL, second]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    ]  # fmt: skip


def test_what_agents_send_beside_functions():
    """Namespaces of functions, tools that OpenAI hosts, and Anthropic's `output_config`."""
    inner = {"type": "function", "name": "spawn", "parameters": {}}
    tools = [RESPONSES_TOOL, {"type": "namespace", "name": "agents", "tools": [inner]},
             {"type": "web_search"}]  # fmt: skip
    given = {"model": "m", "input": "a", "tools": tools, "client_metadata": {"x": "y"}}
    made = responses_request.as_chat(Fields(given))
    assert [tool["function"]["name"] for tool in made["tools"]] == ["weather", "spawn"]
    text = '<tool_call>\n{"name": "spawn", "arguments": {}}\n</tool_call>'
    splitter = Splitter(None, HERMES, {"spawn": {}})
    _, whole = scripted(ResponsesWriter, [text], splitter=splitter, fields=Fields(given))
    (call,) = whole["output"]
    assert (call["name"], call["namespace"]) == ("spawn", "agents")
    assert [tool["type"] for tool in whole["tools"]] == ["function", "namespace"]
    (warning,) = whole["warnings"]
    assert warning.startswith("'tools[2]': web_search is not run here")
    schema = {"type": "object"}
    config = {"effort": "high", "format": {"type": "json_schema", "schema": schema}}
    asked = {"model": "m", "max_tokens": 1, "messages": HELLO, "output_config": config}
    made = messages_request.as_chat(Fields(asked))
    assert made["reasoning_effort"] == "high"
    assert made["response_format"]["json_schema"]["schema"] == schema


def test_blocks_of_messages_are_messages_of_a_chat():
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": [
                {"type": "text", "text": "no"}]},
            {"type": "text", "text": "go on"}]},
    ]  # fmt: skip
    given = {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "i"}]}
    made = messages_request.as_chat(Fields({**given, "messages": turns, "metadata": {}}))
    call = {**CALL, "function": {"name": "f", "arguments": {"a": 1}}}
    assert made == {
        "model": "m", "max_completion_tokens": 5,
        "messages": [
            {"role": "system", "content": "i"}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "t", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "Error: no"},
            {"role": "user", "content": "go on"},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("translate", "given", "param"),
    [
        (responses_request.as_chat, {"input": []}, "input"),
        (responses_request.as_chat, {"input": [{"type": "item_reference"}]}, "input[0].type"),
        (responses_request.as_chat, {"input": "a", "tools": [{"type": "mcp"}]}, "tools[0].type"),
        (responses_request.as_chat, {"input": "a", "background": True}, "background"),
        (responses_request.as_chat, {"input": "a", "reasoning": {"speed": 1}}, "reasoning.speed"),
        (responses_request.as_chat, {"input": "a", "unheard": 1}, "unheard"),
        (messages_request.as_chat, {"messages": HELLO}, "max_tokens"),
        (messages_request.as_chat, {"max_tokens": 1, "messages": [
            {"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        (messages_request.as_chat, {"messages": HELLO, "mcp_servers": []}, "mcp_servers"),
        (messages_request.as_chat, {"max_tokens": 1, "messages": HELLO, "tools": [
            {"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        (ollama_request.chat_request, {"messages": [
            {"role": "user", "content": "a", "images": ["x"]}]}, "messages[0].images"),
        (ollama_request.chat_request, {"messages": HELLO, "options": {"xtc": 1}}, "options.xtc"),
        (ollama_request.chat_request, {"messages": HELLO, "format": "xml"}, "format"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_by_name(translate, given, param):
    with pytest.raises(ApiError) as caught:
        translate(Fields({"model": "m", **given}))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("translate", [
    responses_request.as_chat, messages_request.as_chat, ollama_request.chat_request,
])  # fmt: skip
def test_null_is_absent_in_every_form(translate):
    given = {"model": "m", "input": "a"}
    if translate is not responses_request.as_chat:
        given = {"model": "m", "messages": HELLO}
    if translate is messages_request.as_chat:
        given["max_tokens"] = 1
    nulls = {"tools": None, "temperature": None, "system": None, "previous_response_id": None}
    assert translate(Fields({**given, **nulls})) == translate(Fields(given))


HERMES = next(dialect for dialect in OWN if dialect.name == "hermes")
# Streams of thinking, text and calls, read back by the clients from a transport of the test.

ANSWER = (
    "<think>\nfirst\n</think>\n\nHere is it: "
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)


def scripted(writer, pieces, finish="stop", splitter=None, **details):
    """A writer with an answer in these pieces; what it streams, and the whole."""
    tools = {"weather": PARAMETERS}
    splitter = splitter or Splitter(thinking_of("</think>"), HERMES, tools)
    served = SimpleNamespace(name="m", fingerprint="c1-x")
    params = SimpleNamespace(options=GenerateOptions(max_tokens=9), top_logprobs=None)
    parsed = SimpleNamespace(
        served=served, params=params, prompt_tokens=5, tokenizer=byte_tokenizer(258),
        model_name="m", splitter=lambda: splitter,
    )  # fmt: skip
    stats = Statistics(prompt_tokens=5, generated_tokens=7, reused_tokens=2)
    output = SimpleNamespace(matched_stop=None)
    sequences = {0: SimpleNamespace(stats=stats, output=output)}
    job = SimpleNamespace(sequences=sequences, issue=lambda choice: None)
    made = writer(parsed, job, **details)
    updates = [*(ChoiceUpdate(0, piece) for piece in pieces), ChoiceUpdate(0, finish=finish)]
    text = made.begin() + "".join(map(made.take, updates)) + made.end()
    return text, made.whole()


@contextlib.contextmanager
def replying(text, kind="text/event-stream"):
    """A server that answers every request with this body; its URL."""

    class Reply(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Reply)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


CUTS = (1, 3, 7, len(ANSWER))


@pytest.mark.parametrize("size", CUTS)
def test_a_responses_client_reads_thinking_text_and_calls(size):
    pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    text, whole = scripted(ResponsesWriter, pieces, fields=Fields({"tools": [RESPONSES_TOOL]}))
    with replying(text) as url:
        client = openai.OpenAI(api_key="k", base_url=url)
        with client.responses.stream(model="m", input="a", tools=[RESPONSES_TOOL]) as stream:
            final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message"] + 2 * ["function_call"]
    assert final.output[0].content[0].text.strip() == "first"
    assert final.output_text.strip() == "Here is it:"
    cities = [json.loads(item.arguments)["city"] for item in final.output[2:]]
    assert cities == ["Oslo", "Rome"] and final.tools[0].name == "weather"
    assert [item["type"] for item in whole["output"]] == [item.type for item in final.output]
    assert whole["status"] == final.status == "completed"


@pytest.mark.parametrize("size", CUTS)
def test_a_messages_client_reads_thinking_text_and_calls(size):
    pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    text, whole = scripted(MessagesWriter, pieces)
    with replying(text) as url:
        client = anthropic.Anthropic(api_key="k", base_url=url)
        with client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream:
            final = stream.get_final_message()
    kinds = ["thinking", "text", "tool_use", "tool_use"]
    assert [block.type for block in final.content] == kinds
    assert final.content[0].thinking.strip() == "first"
    assert [block.input["city"] for block in final.content[2:]] == ["Oslo", "Rome"]
    assert final.stop_reason == "tool_use" and final.usage.cache_read_input_tokens == 2
    assert final.content[1].text == whole["content"][1]["text"]
    assert [block["type"] for block in whole["content"]] == kinds


@pytest.mark.parametrize("size", CUTS)
def test_an_ollama_client_reads_thinking_text_and_calls(size):
    pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    text, whole = scripted(OllamaWriter, pieces, asked="m:latest", chat=True)
    with replying(text, "application/x-ndjson") as url:
        parts = list(ollama.Client(host=url).chat("m", messages=HELLO, stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.arguments["city"] for call in calls] == ["Oslo", "Rome"]
    assert "".join(part.message.thinking or "" for part in parts).strip() == "first"
    assert "".join(part.message.content for part in parts).strip() == "Here is it:"
    assert whole["message"]["content"] == "".join(part.message.content for part in parts)
    assert len(whole["message"]["tool_calls"]) == 2 and parts[-1].eval_count == 7


def test_a_stream_that_fails_ends_in_the_form_of_its_api():
    failed = {}
    for name, writer, details in (
        ("responses", ResponsesWriter, {"fields": Fields({})}), ("messages", MessagesWriter, {}),
        ("ollama", OllamaWriter, {"asked": "m", "chat": True}),
    ):  # fmt: skip
        parsed = SimpleNamespace(
            served=SimpleNamespace(name="m", fingerprint="c1-x"), prompt_tokens=1, model_name="m",
            params=SimpleNamespace(options=GenerateOptions()), splitter=Splitter,
        )  # fmt: skip
        made = writer(parsed, SimpleNamespace(sequences={}), **details)
        failed[name] = made.fail(shutting_down()).splitlines()
    event, data = failed["responses"][:2]
    assert event == "event: response.failed"
    assert json.loads(data[6:])["response"]["error"]["code"] == "shutting_down"
    assert json.loads(failed["messages"][1][6:])["error"]["type"] == "overloaded_error"
    assert "shutting down" in json.loads(failed["ollama"][0])["error"]
