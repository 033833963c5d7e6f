"""Adapters over HTTP: chosen by name, listed, loaded and unloaded while the server runs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import quote

import openai
import pytest
from adapter_folders import write_ia3, write_lora
from serving import TINY, serving

import cortiq
from cortiq.errors import RequestError
from cortiq.serve import parsed_request
from cortiq.serve.adapter_names import adapter_of, checked_base
from cortiq.serve.api_keys import ApiKey
from cortiq.serve.errors import ApiError
from cortiq.serve.fields import Fields
from cortiq.serve.parsed_request import parse_completion
from cortiq.serve.served_model import make_served_model

HELLO = [{"role": "user", "content": "hello"}]
OPTIONS = {"max_completion_tokens": 8, "temperature": 0.8, "seed": 4}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    with cortiq.load(TINY, backend="reference", context=64) as model:
        return {
            "one": write_lora(folder / "one", model, 1),
            "two": write_lora(folder / "two", model, 2, rank=5),
            "ia3": write_ia3(folder / "ia3", model, 3),
        }


@pytest.fixture(scope="module")
def server(tmp_path_factory, folders):
    given = ("--adapter", f"one={folders['one']}")
    with serving(tmp_path_factory.mktemp("served"), *given) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client, model, **more):
    made = client.chat.completions.create(model=model, messages=HELLO, **(OPTIONS | more))
    return made.model, made.choices[0].message.content


def post(server, path, **body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_adapters_are_chosen_listed_loaded_and_unloaded(client, server, folders):
    """One test: the server's adapters change as it goes on."""
    base, one = ask(client, TINY), ask(client, f"{TINY}:one")
    assert (base[0], one[0]) == (TINY, f"{TINY}:one") and base[1] != one[1]
    assert one == ask(client, TINY, extra_body={"lora": "one"}) == ask(client, "one")
    for name in ("two", "ia3"):
        status, made = post(
            server, "/v1/load_lora_adapter", lora_name=name, lora_path=str(folders[name])
        )
        assert status == 200 and made["name"] == name and len(made["sha256"]) == 64
    listed = {model.id: model for model in client.models.list()}
    assert [*listed] == [TINY, *(f"{TINY}:{name}" for name in ("one", "two", "ia3"))]
    assert listed[f"{TINY}:two"].parent == TINY and listed[f"{TINY}:two"].rank == 5
    with urllib.request.urlopen(f"{server.url}/v1/models/{quote(TINY)}:two") as answer:
        assert json.load(answer)["rank"] == 5

    names = [TINY, *(f"{TINY}:{name}" for name in ("one", "two", "ia3"))]
    alone = {name: ask(client, name) for name in names}
    assert len({text for _, text in alone.values()}) == 4
    with ThreadPoolExecutor(8) as clients:
        wanted = names * 2
        assert [*clients.map(lambda name: ask(client, name), wanted)] == [alone[n] for n in wanted]
    assert alone[TINY] == base and alone[f"{TINY}:one"] == one

    assert post(server, "/v1/unload_lora_adapter", lora_name="one")[0] == 200
    for model, more in ((f"{TINY}:one", {}), (TINY, {"extra_body": {"lora": "one"}})):
        with pytest.raises(openai.NotFoundError, match="has no adapter 'one'; there are: two, ia3"):
            ask(client, model, **more)
    assert ask(client, f"{TINY}:two") == alone[f"{TINY}:two"]


def test_what_is_not_right_is_refused(client, server, folders, tmp_path):
    load, path = "/v1/load_lora_adapter", str(folders["two"])
    assert post(server, load, lora_name="x y", lora_path=path)[0] == 400
    assert post(server, load, lora_name="x")[0] == 400
    assert post(server, load, lora_name="x", lora_path=str(tmp_path))[0] == 400
    assert post(server, load, lora_name="x", lora_path="hf:somebody/lora")[0] == 403
    assert post(server, load, lora_name="x", lora_path=path, strange=1)[0] == 400
    assert post(server, "/v1/unload_lora_adapter", lora_name="nobody")[0] == 404
    post(server, load, lora_name="again", lora_path=path)
    assert post(server, load, lora_name="again", lora_path=path)[0] == 400
    with pytest.raises(openai.BadRequestError, match="two adapters"):
        ask(client, f"{TINY}:again", extra_body={"lora": "other"})
    with pytest.raises(openai.BadRequestError, match="for generating"):
        client.embeddings.create(model=f"{TINY}:again", input="x")


class Loaded(dict):
    """Adapters by name, as a model has them."""

    listed = ()

    def named(self, name):
        if name not in self:
            raise RequestError("not loaded")
        return self[name]


def test_an_adapter_of_the_models_own_name_takes_no_plain_request():
    served = SimpleNamespace(name="m", model=SimpleNamespace(adapters=Loaded(m=1, one=2)))
    for asked, chosen in (("m", None), ("m:m", 1), ("one", 2), ("m:one", 2)):
        assert adapter_of(served, Fields({"model": asked})) == chosen


@pytest.mark.parametrize("asked", [{"model": "one"}, {"model": "m:one"}, {"lora": "one"}])
def test_an_adapter_unloaded_meanwhile_is_not_found(asked):
    """Its name alone found the model, which does not answer without it."""
    served = SimpleNamespace(name="m", model=SimpleNamespace(adapters=Loaded()))
    with pytest.raises(ApiError, match="no adapter 'one'") as caught:
        adapter_of(served, Fields({"model": "m", **asked}))
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


def test_a_parsed_request_holds_its_adapter(folders, monkeypatch):
    """It is looked up once, so that a request keeps one that is unloaded while it is parsed."""
    with cortiq.load(TINY, backend="reference", context=64) as model:
        served = make_served_model(model, None)
        model.load_adapter("one", folders["one"])
        chosen, own = model.adapters.named("one"), parsed_request.read_params

        def read(*given):
            model.unload_adapter("one")
            return own(*given)

        monkeypatch.setattr(parsed_request, "read_params", read)
        fields = Fields({"model": f"{served.name}:one", "prompt": "x"})
        parsed = parse_completion(served, fields)
        assert [one.overlay for one in parsed.requests] == [chosen]
        assert parsed.model_name == f"{served.name}:one"


def test_tokens_are_the_models_with_any_adapter(server, folders):
    """An adapter changes no tokenizer; its name is one of the model's all the same."""
    given = {"lora_name": "named", "lora_path": str(folders["one"])}
    assert post(server, "/v1/load_lora_adapter", **given)[0] == 200
    names = (TINY, f"{TINY}:named", "named")
    found = [post(server, "/tokenize", model=name, prompt="Hi") for name in names]
    assert found[0][0] == 200 and found == [found[0]] * 3
    status, made = post(server, "/detokenize", model=names[1], tokens=found[0][1]["tokens"])
    assert status == 200 and made["prompt"].endswith("Hi")
    assert post(server, "/v1/unload_lora_adapter", lora_name="named")[0] == 200


def test_a_key_of_an_adapter_takes_both_its_names():
    adapters = SimpleNamespace(model=SimpleNamespace(adapters={"one", "two"}))
    models = {"m": SimpleNamespace(name="m", served=adapters)}
    key = ApiKey(b"", models=frozenset({"m:one"}))
    for name in ("m:one", "one"):
        assert checked_base(models, name, key, True) == "m"
    for name in ("m:two", "two", "m"):
        with pytest.raises(ApiError, match="may not use"):
            checked_base(models, name, key, True)


def test_ollamas_paths_take_adapters(server, client, folders):
    path, options = str(folders["two"]), {"temperature": 0, "num_predict": 8}
    assert post(server, "/v1/load_lora_adapter", lora_name="other", lora_path=path)[0] == 200

    def text(model):
        body = {"model": model, "prompt": "Hi", "raw": True, "stream": False, "options": options}
        status, answer = post(server, "/api/generate", **body)
        assert status == 200, answer
        return answer["response"]

    how = {"prompt": "Hi", "max_tokens": 8, "temperature": 0}
    made = client.completions.create(model=f"{TINY}:other", **how).choices[0].text
    assert text(f"{TINY}:other") == made != text(TINY)
    assert post(server, "/v1/unload_lora_adapter", lora_name="other")[0] == 200


def test_receipts_of_a_server_name_the_adapter(client, server, folders):
    name = f"{TINY}:kept"
    post(server, "/v1/load_lora_adapter", lora_name="kept", lora_path=str(folders["two"]))
    made = client.chat.completions.create(
        model=name, messages=HELLO, **OPTIONS, extra_body={"receipt": True}
    )
    receipt = made.choices[0].receipt
    assert receipt["claim"]["adapter"][1] == 1.0
    assert post(server, "/v1/verify", receipt=receipt)[1]["identical"]
