"""Sampling where nobody says anything: files' recommendations, known names', the gentle default."""

from __future__ import annotations

import json
import urllib.request

import pytest
from click.testing import CliRunner
from folders import write_llama
from serving import serving

import cortiq
from cortiq.cli.inspect import inspect
from cortiq.errors import FormatError, RequestError
from cortiq.formats.recommended import of_generation_config, of_gguf
from cortiq.model.default_sampling import GENTLE, DefaultSampling, usual_sampling
from cortiq.options import GenerateOptions
from cortiq.serve.completion_params import read_params
from cortiq.serve.fields import Fields

SOMETHING = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}


@pytest.fixture(autouse=True)
def nobody_says_anything(monkeypatch):
    monkeypatch.delenv("CORTIQ_TEMPERATURE")


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (SOMETHING, SOMETHING),
        ({**SOMETHING, "min_p": None, "max_length": 20, "do_sample": True}, SOMETHING),
        ({"top_k": 64, "do_sample": True}, {"temperature": 1.0, "top_k": 64}),
        ({"temperature": 1, "top_p": 1.0, "top_k": -1}, {"temperature": 1.0}),
        ({"do_sample": False, "temperature": 0.6}, {"temperature": 0.0}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"eos_token_id": 2}, {}),
    ],
)  # fmt: skip
def test_what_a_generation_config_recommends(config, found):
    assert of_generation_config(config, "f") == found


def test_what_a_gguf_file_recommends_is_read_as_decimal_numbers():
    keys = {
        "temp": 0.6000000238418579,
        "top_k": 20,
        "top_p": 0.949999988079071,
        "penalty_last_n": 64,
    }
    metadata = {f"general.sampling.{key}": value for key, value in keys.items()}
    assert of_gguf(metadata, "f") == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert of_gguf({}, "f") == {}


@pytest.mark.parametrize(
    "config",
    [{"temperature": -1}, {"temperature": "0.7"}, {"top_p": 1.5}, {"top_k": 2.5}, {"min_p": True},
     {"temperature": float("nan")}, {"repetition_penalty": float("inf")}, {"top_k": [1]}],
)  # fmt: skip
def test_a_recommendation_that_nothing_can_follow_is_refused_with_its_file(config):
    with pytest.raises(FormatError, match=next(iter(config))) as error:
        of_generation_config(config, "generation_config.json")
    assert error.value.where == "generation_config.json"


def test_who_recommends():
    assert usual_sampling("x", SOMETHING) == DefaultSampling(SOMETHING, "the model")
    assert usual_sampling("x", {}).values == GENTLE
    assert usual_sampling("x", {"repetition_penalty": 1.1}).values == {
        **GENTLE,
        "repetition_penalty": 1.1,
    }
    card = usual_sampling("smollm2", {})
    assert card.values["temperature"] < GENTLE["temperature"] and card.origin == "the model's card"


def test_what_the_caller_says_wins_and_greedy_is_greedy(monkeypatch):
    usual = DefaultSampling(SOMETHING, "the model")
    made = usual.options({"top_k": 5, "temperature": None})
    assert (made.temperature, made.top_k, made.top_p, made.repetition_penalty) == (
        0.6,
        5,
        0.95,
        1.05,
    )
    assert usual.options({"temperature": 0}) == GenerateOptions(temperature=0.0)
    assert usual.options({"temperature": 0, "top_k": 3}) == GenerateOptions(
        temperature=0.0, top_k=3
    )
    monkeypatch.setenv("CORTIQ_TEMPERATURE", "0.4")
    assert (
        usual.options({}).temperature == 0.4
        and usual.options({"temperature": 0.9}).temperature == 0.9
    )
    assert usual.options({}, environment={}).temperature == 0.6
    assert usual.changed({"temperature": 0.0, "top_p": None}).options({}, {}) == GenerateOptions()
    with pytest.raises(RequestError, match="temperature"):
        usual.options({"temperature": -1})


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "llama"
    made.mkdir()
    write_llama(made, "llama")
    (made / "generation_config.json").write_text(json.dumps(SOMETHING))
    return made


def test_every_entry_of_the_python_api_samples_as_the_model_recommends(folder):
    with cortiq.load(folder) as model:
        assert model.usual.values == SOMETHING
        one = model.generate([1, 2, 3], max_tokens=1)
        several = model.generate_many([[1, 2, 3]], max_tokens=1, seed=5)[0]
        with model.stream([1, 2, 3], max_tokens=1) as stream:
            streamed = "".join(stream), stream.generation
        for made in (one, several, streamed[1]):
            assert {name: getattr(made.options, name) for name in SOMETHING} == SOMETHING
            assert made.seed is not None
        again = model.generate([1, 2, 3], max_tokens=1, seed=one.seed, **SOMETHING)
        assert again.digest == one.digest and again.token_ids == one.token_ids
        assert model.generate([1, 2, 3], max_tokens=1, temperature=0).seed is None


def test_inspect_says_how_a_model_is_sampled_from(folder):
    done = CliRunner().invoke(inspect, [str(folder)])
    assert (
        "sampling: temperature 0.6, top_p 0.95, repetition_penalty 1.05, top_k 20 (the model)"
        in done.stdout
    )


def test_a_request_takes_the_operators_defaults_and_its_own_values_before_them():
    usual = DefaultSampling(SOMETHING, "the model").changed({"temperature": 0.3})
    made = read_params(Fields({"model": "m"}), None, 7, usual).options
    assert (made.temperature, made.top_k, made.top_p) == (0.3, 20, 0.95)
    given = Fields({"model": "m", "temperature": 1, "top_p": 0, "top_k": None})
    made = read_params(given, None, 7, usual).options
    assert (made.temperature, made.top_k, made.repetition_penalty) == (1.0, 1, 1.05)
    greedy = read_params(Fields({"model": "m", "temperature": 0}), None, 7, usual).options
    assert greedy == GenerateOptions(max_tokens=7)


def test_the_server_lists_its_defaults(tmp_path):
    arguments = ("--temperature", "0.25", "--top-k", "7")
    with (
        serving(tmp_path, *arguments) as server,
        urllib.request.urlopen(server.url + "/v1/models") as response,
    ):
        (listed,) = json.load(response)["data"]
    values = {"temperature": 0.25, "top_p": 0.95, "top_k": 7}
    assert listed["sampling"] == {**values, "origin": "the operator"}
