"""The server, asked by OpenAI's own client: answers, streams, and errors in its classes."""

from __future__ import annotations

import json
import signal
import time
import urllib.request

import openai
import pytest
from click.testing import CliRunner
from serving import TEMPLATE, TINY, serving

import cortiq
from cortiq.cli.serve import serve
from cortiq.errors import RequestError
from cortiq.serve.options import ServeOptions
from cortiq.serve.run import listening
from cortiq.serve.served import served, unique

OTHER = "synthetic:tiny-gemma3?seed=2"
HELLO = [{"role": "user", "content": "hello"}]
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


def test_two_models_of_one_name_are_refused(model):
    made = served(model, None)
    with pytest.raises(RequestError, match="two models are called"):
        unique([made, made])


def test_without_its_libraries_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("cortiq.cli.serve.find_spec", lambda name: None)
    done = CliRunner().invoke(serve, [TINY])
    assert done.exit_code == 1 and "pip install 'cortiq[serve]'" in str(done.exception)


def test_an_address_that_is_taken_is_an_error_of_ours(server):
    with pytest.raises(RequestError, match="cannot listen there"):
        listening(ServeOptions(port=int(server.url.rpartition(":")[2])))


def test_a_second_signal_ends_it_at_once(tmp_path):
    with serving(tmp_path, "--context", "4096") as other:
        body = {"model": TINY, "prompt": "a", "max_tokens": 4000, "ignore_eos": True, "n": 8}
        request = urllib.request.Request(
            f"{other.url}/v1/completions", json.dumps({**body, "stream": True}).encode()
        )
        with urllib.request.urlopen(request) as answer:
            answer.read(10)
            other.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            other.process.send_signal(signal.SIGINT)
            assert other.process.wait(30) == 0
