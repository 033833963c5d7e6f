"""Clients as people have them: OpenAI's own, also asynchronous, simonw's llm, and curl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from urllib.parse import quote

import openai
import pytest
from serving import TINY, serving

import cortiq

KEY = "sk-of-this-test"
HELLO = [{"role": "user", "content": "hello"}]
PLAIN = {"model": TINY, "temperature": 0, "max_completion_tokens": 10}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("clients"), "--api-key", KEY) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


@pytest.fixture(scope="module")
def expected(client):
    return client.chat.completions.create(messages=HELLO, **PLAIN).choices[0].message.content


def test_the_wrong_key_is_its_error_class(server):
    other = openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-other", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        other.chat.completions.create(messages=HELLO, **PLAIN)
    assert caught.value.code == "invalid_api_key"
    assert KEY not in "\n".join(server.lines)


def test_many_at_once_get_what_each_gets_alone(server, expected):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:

            async def streamed():
                made = await client.chat.completions.create(messages=HELLO, stream=True, **PLAIN)
                return "".join([c.choices[0].delta.content or "" async for c in made])

            return await asyncio.gather(*(streamed() for _ in range(16)))

    assert asyncio.run(all_of_them()) == [expected] * 16


def test_logprobs_are_the_models_own_to_the_bit(client):
    given = {"temperature": 1, "seed": 4, "max_completion_tokens": 4, "top_logprobs": 3}
    made = client.chat.completions.create(
        messages=HELLO, logprobs=True, **{**PLAIN, **given}
    ).choices[0]  # fmt: skip
    assert len(made.logprobs.content) == 4
    for entry in made.logprobs.content:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True)
        assert entry.logprob <= tops[0] <= 0
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token


def test_stop_bias_and_text_completions(client):
    whole = client.completions.create(model=TINY, prompt=["ab", "cd"], max_tokens=8, temperature=0)
    first, second = whole.choices
    assert (first.index, second.index) == (0, 1) and first.text != second.text
    cut = client.completions.create(
        model=TINY, prompt=list(b"ab"), max_tokens=8, temperature=0, stop=first.text[3],
        echo=True,
    ).choices[0]  # fmt: skip
    assert cut.text == "ab" + first.text[: first.text.index(first.text[3])]
    assert cut.finish_reason == "stop"
    forced = client.completions.create(
        model=TINY, prompt="ab", max_tokens=3, temperature=0, logit_bias={"65": 100}
    )
    assert forced.choices[0].text == "AAA"


def test_embeddings_are_those_of_the_python_api(client):
    made = client.embeddings.create(model=TINY, input=["one text", "another"])  # base64
    plain = client.embeddings.create(
        model=TINY, input="another", encoding_format="float", extra_body={"pooling": "last"}
    )
    with cortiq.load(TINY, context=512, threads=1) as model:
        own = model.embed(["one text", "another"], pooling="mean", normalise=True)
        last = model.embed("another", pooling="last", normalise=True)
    assert [list(map(float, vector)) for vector in own] == [one.embedding for one in made.data]
    assert plain.data[0].embedding == list(map(float, last))
    assert made.usage.prompt_tokens == len("one text") + len("another")


def test_a_prompt_that_begins_like_an_earlier_one_is_cached(client):
    begin = {"role": "system", "content": "a beginning that is shared by all of us"}
    for cached in (False, True):
        made = client.chat.completions.create(messages=[begin, *HELLO], **PLAIN)
        assert (made.usage.prompt_tokens_details.cached_tokens > 40) is cached


@pytest.mark.parametrize("stream", [False, True])
def test_llm(server, expected, tmp_path, stream):
    """`llm` with the model in its extra-openai-models.yaml, as its documentation has it."""
    entry = {
        "model_id": "mine",
        "model_name": TINY,
        "api_base": f"{server.url}/v1",
        "api_key_name": "here",
    }
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML too
    words = [
        "hello",
        "-m",
        "mine",
        "--key",
        KEY,
        "-o",
        "temperature",
        "0",
        "-o",
        "max_tokens",
        "10",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "llm", *words, *([] if stream else ["--no-stream"]), "--no-log"],
        env={**os.environ, "LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == expected.rstrip("\n")


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl(server, expected):
    def curl(path, body=None, *flags):
        words = ["curl", "-sS", *flags, f"{server.url}{path}"]
        words += ["-H", f"Authorization: Bearer {KEY}"]
        if body is not None:
            words += ["-H", "Content-Type: application/json", "-d", body]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    body = {**PLAIN, "messages": HELLO}
    made = json.loads(curl("/v1/chat/completions", json.dumps(body)))
    assert made["choices"][0]["message"]["content"] == expected
    streamed = curl("/v1/chat/completions", json.dumps({**body, "stream": True}), "-N")
    events = [line for line in streamed.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    pieces = [json.loads(event[6:])["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(piece.get("content") or "" for piece in pieces) == expected
    refused = json.loads(curl("/v1/chat/completions", "{not json"))
    assert refused["error"]["type"] == "invalid_request_error"
    assert "could not parse the JSON" in refused["error"]["message"]
    models = json.loads(curl("/v1/models"))["data"]
    assert (
        models[0]["id"] == TINY
        and json.loads(curl("/v1/models/" + quote(TINY, safe=""))) == models[0]
    )
    assert "cortiq_requests_total{" in curl("/metrics")
    assert json.loads(curl("/health"))["status"] == "ok"
