"""The server, asked by OpenAI's own client: answers, streams, and errors in its classes."""

from __future__ import annotations

import http.client
import json
import signal
import time
import urllib.request

import openai
import pytest
from click.testing import CliRunner
from serving import TEMPLATE, TINY, serving
from work import HANG_SECONDS

import cortiq
from cortiq.cli.serve import serve
from cortiq.errors import RequestError
from cortiq.serve.model_pool import check_names
from cortiq.serve.options import ServeOptions
from cortiq.serve.run import bind_socket

OTHER = "synthetic:tiny-gemma3?seed=2"
HELLO = [{"role": "user", "content": "hello"}]
MANY = {"prompt": ["a"] * 32, "max_tokens": 490, "ignore_eos": True, "logprobs": 20}
DEAF = {"model": TINY, "stream": True, **MANY}
SEEDED = {"temperature": 2.0, "seed": 5, "presence_penalty": 2.0, "frequency_penalty": 2.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    more = ("--draft", "lookup", OTHER)  # which change no answer
    with serving(tmp_path_factory.mktemp("serve"), *more) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model():
    with cortiq.load(TINY, context=512, threads=1) as loaded:
        loaded.tokenizer.chat_templates["default"] = TEMPLATE
        yield loaded


def ask(client, **more):
    given = {"model": TINY, "messages": HELLO, "max_completion_tokens": 12, **SEEDED, **more}
    return client.chat.completions.create(**given)


def test_an_answer_is_what_the_model_generates(client, model):
    made = ask(client)
    own = model.chat(
        HELLO, max_tokens=12, temperature=2.0, seed=5, presence_penalty=2.0, frequency_penalty=2.0
    )
    assert made.choices[0].message.content == own.text
    assert made.choices[0].finish_reason == own.finish_reason
    assert made.usage.completion_tokens == len(own.token_ids)
    assert made.usage.prompt_tokens == own.stats.prompt_tokens
    assert model.model_hash[:16] in made.system_fingerprint


def test_pieces_of_a_stream_are_the_whole(client):
    whole = ask(client, n=2)
    texts, ends, used = ["", ""], [None, None], None
    for chunk in ask(client, n=2, stream=True, stream_options={"include_usage": True}):
        used = chunk.usage or used
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason or ends[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert used.completion_tokens == whole.usage.completion_tokens
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("kind", "code", "param", "given"),
    [
        (openai.NotFoundError, "model_not_found", "model", {"model": "gpt-4"}),
        (openai.BadRequestError, "context_length_exceeded", "messages",
         {"messages": [{"role": "user", "content": "long " * 200}]}),
        (openai.BadRequestError, None, "temperature", {"temperature": "warm"}),
        (openai.BadRequestError, "unknown_parameter", "temprature",
         {"extra_body": {"temprature": 1}}),
    ],
)  # fmt: skip
def test_errors_are_of_the_classes_that_clients_look_for(client, kind, code, param, given):
    given = {"model": TINY, "messages": HELLO, **given}
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**given)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert ask(client, max_completion_tokens=1).usage.completion_tokens == 1


def test_who_asks_at_the_wrong_path_is_told_the_right_one(client, server):
    before = len(server.requests())
    with pytest.raises(openai.NotFoundError, match=r"'/v1/moderations'\. .*There are /v1/chat/c"):
        client.moderations.create(input="hello")
    with pytest.raises(openai.BadRequestError, match="raw texts go to /v1/completions"):
        ask(client, extra_body={"prompt": "a"})
    with pytest.raises(openai.BadRequestError, match="conversations go to /v1/chat/completions"):
        client.completions.create(model=TINY, prompt="a", extra_body={"messages": HELLO})
    assert "error=unknown_parameter param=messages" in server.request_after(before + 2)


def test_models_are_served_side_by_side(client, server):
    assert [model.id for model in client.models.list()] == [TINY, OTHER]
    assert client.models.retrieve(OTHER).system_fingerprint not in (None, fingerprint(client))
    answers = {ask(client, model=name).choices[0].message.content for name in (TINY, OTHER)}
    assert len(answers) == 2


def fingerprint(client):
    return ask(client, max_completion_tokens=1).system_fingerprint


def test_another_backend_gives_the_same_answers_and_the_same_fingerprint(client, tmp_path):
    """Drawn, with penalties, drafted for here and not there, log-probabilities to the bit."""
    with serving(tmp_path, "--backend", "reference") as other:
        there = openai.OpenAI(base_url=f"{other.url}/v1", api_key="any", max_retries=0)
        made = [ask(one, n=2, logprobs=True, top_logprobs=3) for one in (client, there)]
    assert made[0].choices == made[1].choices
    assert made[0].system_fingerprint == made[1].system_fingerprint


def test_comments_tell_how_far_a_prompt_is(server):
    body = {"model": TINY, "messages": [{"role": "user", "content": "a" * 400}], "max_tokens": 1}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps({**body, "stream": True}).encode()
    )
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    assert [line for line in lines if line.startswith(": prompt 256/4")]


def test_two_models_of_one_name_are_refused():
    with pytest.raises(RequestError, match="two models are called 'a'"):
        check_names(["a", "b", "a"])
    check_names(["a", "b"])


def test_without_its_libraries_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("cortiq.cli.serve.find_spec", lambda name: None)
    done = CliRunner().invoke(serve, [TINY])
    assert done.exit_code == 1 and "[serve]'" in str(done.exception)


def test_an_address_that_is_taken_is_an_error_of_ours(server):
    with pytest.raises(RequestError, match="cannot listen there") as caught:
        bind_socket(ServeOptions(port=int(server.url.rpartition(":")[2])))
    assert "--port" in caught.value.hint


def test_a_second_signal_ends_it_at_once(tmp_path):
    with serving(tmp_path, "--context", "4096") as other:
        body = {"model": TINY, "prompt": "a", "max_tokens": 4000, "ignore_eos": True, "n": 8}
        request = urllib.request.Request(
            f"{other.url}/v1/completions", json.dumps({**body, "stream": True}).encode()
        )
        with urllib.request.urlopen(request) as answer:
            answer.read(10)
            other.process.send_signal(signal.SIGINT)
            while not any("waiting up to 30 s for 1 response" in line for line in other.lines):
                time.sleep(0.02)
            assert other.stop(signal.SIGINT) == 1
            last = answer.read().decode().strip().rpartition("data: ")[2]
        assert json.loads(last)["error"]["code"] == "shutting_down"
        assert any("shutdown interrupted 1 response" in line for line in other.lines)
        assert not any("Traceback" in line or "ASGI" in line for line in other.lines)


def test_what_is_cut_off_before_it_began_to_answer_gets_an_error_of_ours(tmp_path):
    """A whole answer, an embedding, and a body that is not there yet."""
    with serving(tmp_path, "--context", "4096", "--drain-seconds", "0.5") as other:
        long = {"model": TINY, "prompt": "a", "max_tokens": 4000, "ignore_eos": True, "n": 16}
        texts = {"model": TINY, "input": ["a b " * 900] * 200}
        asked = [
            begin(other, "/v1/completions", json.dumps(long)),
            begin(other, "/v1/embeddings", json.dumps(texts)),
            begin(other, "/v1/completions", "{", more=9),
        ]
        time.sleep(0.5)
        assert other.stop() == 1
        for connection in asked:
            answer = connection.getresponse()
            made = json.loads(answer.read())
            assert (answer.status, made["error"]["code"]) == (503, "shutting_down")
        assert sum("error=shutting_down" in line for line in other.requests()) == 3
        assert not any("Traceback" in line or "ASGI" in line for line in other.lines)


def begin(server, path, body, more=0):
    """A connection that has sent a request, but for some bytes at its end."""
    made = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_SECONDS)
    made.putrequest("POST", path)
    made.putheader("content-length", str(len(body) + more))
    made.endheaders(body.encode())
    return made


def test_listening_everywhere_it_tells_an_address_that_can_be_asked(tmp_path):
    told_once = CliRunner().invoke(serve, [TINY, "--host", "0.0.0.0"])
    assert "anybody who can reach 0.0.0.0 could use the models" in str(told_once.exception)
    with serving(tmp_path, "--host", "0.0.0.0", "--without-key") as other:
        assert other.url == f"http://127.0.0.1:{other.port}"
        assert any("listens on all addresses" in line for line in other.lines)
        assert other.stop() == 0


def test_who_does_not_read_does_not_hold_up_the_end(tmp_path):
    """Megabytes that nobody takes: no word gets through, and the connection is dropped."""
    with serving(tmp_path, "--drain-seconds", "2") as other:
        deaf = begin(other, "/v1/completions", json.dumps(DEAF))
        time.sleep(0.5)
        assert other.stop() == 1
        assert any("shutdown interrupted 1 response" in line for line in other.lines)
        deaf.close()
