"""Options: one definition, three ways to set them, and every bad value refused by name."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest

from cortiq.errors import OptionError, RequestError
from cortiq.numerics.sampling import Sampling
from cortiq.options import (
    GenerateOptions,
    LoadOptions,
    ScoreOptions,
    environment_name,
    flag,
    resolve,
    specs,
)

ALL = (LoadOptions, GenerateOptions, ScoreOptions)


def test_given_wins_over_environment_wins_over_default():
    environment = {"CORTIQ_TOP_K": "5", "CORTIQ_MAX_TOKENS": "7"}
    chosen = resolve(GenerateOptions, {"top_k": 9, "max_tokens": None}, environment)
    assert (chosen.top_k, chosen.max_tokens, chosen.top_p) == (9, 7, 1.0)


def test_every_kind_of_value_can_come_from_the_environment():
    environment = {
        "CORTIQ_TEMPERATURE": "0.5", "CORTIQ_SEED": "12", "CORTIQ_STOP": "a,b",
        "CORTIQ_STOP_IDS": "1,2", "CORTIQ_LOGIT_BIAS": "3=1.5,4=-2", "CORTIQ_IGNORE_EOS": "yes",
    }  # fmt: skip
    chosen = resolve(GenerateOptions, {}, environment)
    assert (chosen.temperature, chosen.seed, chosen.ignore_eos) == (0.5, 12, True)
    assert (chosen.stop, chosen.stop_ids) == (("a", "b"), (1, 2))
    assert chosen.logit_bias == {3: 1.5, 4: -2.0}
    assert resolve(LoadOptions, {}, {"CORTIQ_BACKEND": "x:y"}).backend == "x:y"
    assert resolve(GenerateOptions, {}, {"CORTIQ_SEED": ""}).seed is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SEED", "x"),
        ("SEED", "-1"),
        ("MAX_TOKENS", "0"),
        ("IGNORE_EOS", "maybe"),
        ("LOGIT_BIAS", "3"),
        ("STOP_IDS", "1,"),
    ],
)
def test_bad_environment_is_named(name, text):
    with pytest.raises(RequestError, match=f"CORTIQ_{name}"):
        resolve(GenerateOptions, {}, {f"CORTIQ_{name}": text})


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": True}, {"max_tokens": "3"},
        {"temperature": -0.1}, {"temperature": float("nan")}, {"temperature": float("inf")},
        {"top_k": -1}, {"top_p": 0}, {"top_p": 1.01}, {"min_p": 1.5}, {"repetition_penalty": 0},
        {"seed": -1}, {"seed": 2**53}, {"stop": [3]}, {"stop_ids": [-1]}, {"chunk_rows": 0},
        {"logit_bias": {-1: 1.0}}, {"logit_bias": {1: float("nan")}}, {"ignore_eos": 1},
    ],
)  # fmt: skip
def test_bad_value_is_refused_by_name(bad):
    (name,) = bad
    with pytest.raises(OptionError, match=f"^{name} must be ") as caught:
        resolve(GenerateOptions, bad, {})
    assert flag(name) not in str(caught.value) and caught.value.option == name


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"max_tokens": 2.5}, "max_tokens must be an integer of at least 1, not 2.5"),
        ({"top_p": 2}, "top_p must be a finite number above 0 and at most 1, not 2.0"),
        ({"min_p": 2}, "min_p must be a finite number of at least 0 and at most 1, not 2.0"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false, not 1"),
        ({"logit_bias": 7}, "logit_bias must be a mapping of token ids to numbers, not 7"),
    ],
)
def test_sentences_of_bad_values_read_well(bad, sentence):
    with pytest.raises(OptionError) as caught:
        resolve(GenerateOptions, bad, {})
    assert str(caught.value) == sentence


@pytest.mark.parametrize("options", ALL)
def test_docstrings_name_every_option_with_its_default(options):
    text = inspect.getdoc(options)
    for field in dataclasses.fields(options):
        assert f"\n{field.name} : " in text and f"(default {field.default!r})" in text
        assert specs(options)[field.name].help in text


def test_unknown_option_is_refused_with_a_near_one():
    with pytest.raises(RequestError, match="did you mean 'top_k'"):
        resolve(GenerateOptions, {"topk": 3}, {})
    with pytest.raises(RequestError, match=r"help\(cortiq.ScoreOptions\)"):
        resolve(ScoreOptions, {"x": 3}, {})


def test_numbers_of_numpy_are_numbers():
    chosen = resolve(GenerateOptions, {"seed": np.int64(3), "temperature": 1}, {})
    assert type(chosen.seed) is int and type(chosen.temperature) is float


def test_one_text_is_one_stop_string():
    assert resolve(GenerateOptions, {"stop": "end"}, {}).stop == ("end",)


@pytest.mark.parametrize("options", ALL)
def test_every_option_has_a_sentence_and_a_valid_default(options):
    assert all(spec.help.endswith(".") for spec in specs(options).values())
    options()


def test_names_do_not_clash_between_classes():
    names = [name for options in ALL for name in specs(options)]
    assert len(names) == len({environment_name(name) for name in names})


def test_sampling_options_are_those_of_the_contract_and_change_bits():
    known = specs(GenerateOptions)
    names = {field.name for field in dataclasses.fields(Sampling)}
    assert names | {"choice"} == {name for name, spec in known.items() if spec.bits}
