"""Several models on one server that has room for one: answers, states, loading by hand."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import ollama
import openai
import pytest
from serving import TINY, serving

from cortiq.formats import fetch

OTHER = "synthetic:tiny-gemma3?seed=2"
HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-of-this-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    with serving(folder, OTHER, "--max-loaded", "1", "--api-key", KEY) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def ask(client, model, seed=1, **more):
    given = {"max_completion_tokens": 6, "temperature": 1.5, "seed": seed, **more}
    return client.chat.completions.create(model=model, messages=HELLO, **given)


def post(server, path, body=None, key=KEY):
    request = urllib.request.Request(
        server.url + path, json.dumps(body or {}).encode(), {"authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def states(client):
    return {model.id: model.state for model in client.models.list()}


def test_answers_do_not_depend_on_what_is_loaded(client, server):
    """Mixed requests for both, many at once, get what each got alone; one is in memory."""
    alone = {
        (model, seed): ask(client, model, seed).choices[0].message.content
        for model in (TINY, OTHER) for seed in (1, 2)
    }  # fmt: skip
    wanted = [*alone] * 4
    with ThreadPoolExecutor(16) as clients:
        made = list(clients.map(lambda one: ask(client, *one).choices[0].message.content, wanted))
    assert made == [alone[one] for one in wanted]
    assert sorted(states(client).values()) == ["loaded", "unloaded"]
    assert any(f"loaded {OTHER} in" in line for line in server.lines)


def test_loading_and_unloading_by_hand(client, server):
    assert post(server, f"/v1/models/{quote(OTHER)}/load")["state"] == "loaded"
    assert states(client) == {TINY: "unloaded", OTHER: "loaded"}
    entry = client.models.retrieve(TINY)
    assert entry.system_fingerprint and entry.context_length == 512  # known from before
    assert post(server, f"/v1/models/{quote(OTHER)}/unload")["state"] == "unloaded"
    assert set(states(client).values()) == {"unloaded"}
    for path in ("load", "unload"):
        with pytest.raises(urllib.error.HTTPError) as missing:
            post(server, f"/v1/models/nothing/{path}")
        assert missing.value.code == 404
    metrics = urllib.request.Request(f"{server.url}/metrics", headers={"x-api-key": KEY})
    with urllib.request.urlopen(metrics) as answer:
        text = answer.read().decode()
    assert 'cortiq_models{state="unloaded"} 2.0' in text
    assert "cortiq_sequences_running{" not in text


@pytest.mark.parametrize("leaves", [False, True])
def test_a_stream_holds_its_model_until_it_ends_or_its_client_leaves(client, server, leaves):
    body = {"model": TINY, "prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(body).encode(), {"x-api-key": KEY}
    )
    with ThreadPoolExecutor(1) as other, urllib.request.urlopen(request) as stream:
        stream.read(10)
        leaving = other.submit(post, server, f"/v1/models/{quote(TINY)}/unload")
        if leaves:
            stream.close()
        else:
            assert stream.read().decode().endswith("data: [DONE]\n\n")
        assert leaving.result(60)["state"] == "unloaded"
    assert states(client)[TINY] == "unloaded"


def test_a_receipt_is_verified_on_a_model_that_has_to_be_loaded_again(client, server):
    made = ask(client, TINY, extra_body={"receipt": True}).choices[0].receipt
    post(server, f"/v1/models/{quote(OTHER)}/load")
    assert post(server, "/v1/verify", {"receipt": made})["identical"]
    assert states(client)[TINY] == "loaded"


def test_ollamas_clients_say_how_long_a_model_stays(client, server):
    llama = ollama.Client(server.url, headers={"authorization": f"Bearer {KEY}"})
    answer = llama.chat(TINY, HELLO, keep_alive="1h", options={"num_predict": 2})
    assert answer.message.content and [one.model for one in llama.ps().models] == [TINY]
    assert llama.ps().models[0].expires_at.year < 9999
    llama.generate(TINY, keep_alive=0)
    while llama.ps().models:
        pass
    assert {one.model for one in llama.list().models} == {TINY, OTHER}
    with pytest.raises(ollama.ResponseError, match="keep_alive"):
        llama.chat(TINY, HELLO, keep_alive="5 fortnights")


def test_names_that_nobody_offered_are_not_fetched(client):
    with pytest.raises(openai.NotFoundError) as refused:
        ask(client, "smollm2")
    assert refused.value.code == "model_not_found"


def test_pulling_is_for_servers_that_may_and_for_names_that_can_be_fetched(server, tmp_path):
    """A known name in the cache is fetched at once; paths, addresses and formulas never are."""
    llama = ollama.Client(server.url, headers={"authorization": f"Bearer {KEY}"})
    with pytest.raises(ollama.ResponseError, match="--allow-pull"):
        llama.pull("smollm2")
    with serving(tmp_path, "--allow-pull") as other:
        llama = ollama.Client(other.url)
        for name in ("/etc/passwd", "https://example.com/a.gguf#sha256=1", OTHER, "nothing"):
            with pytest.raises(ollama.ResponseError, match="does not exist here") as refused:
                llama.pull(name)
            assert refused.value.status_code == 404
        if fetch.cached("smollm2") is not None:
            said = [one.status for one in llama.pull("smollm2", stream=True)]
            assert said[0] == "pulling manifest" and said[-1] == "success"
            assert llama.pull("smollm2").status == "success"
            assert "smollm2" in {one.model for one in llama.list().models}
