"""Draft heads in the engine and on the command line: nobody's token depends on them."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import numpy as np
import pytest
from click.testing import CliRunner
from engines import TOKENIZER, WAYS, backends, facts

import cortiq
from cortiq.backend import CompileOptions
from cortiq.cli.main import cli
from cortiq.engine.drafters.heads import HeadDrafter
from cortiq.engine.drafting import FixedDepth, Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.prefixes import PrefixCache
from cortiq.engine.request import make_request
from cortiq.errors import RequestError, UnsupportedError
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.layouts import Weight
from cortiq.options import GenerateOptions

MODELS = [("tiny-llama", "mtp"), ("tiny-lfm2", "mtp"), ("tiny-llama", "mimo")]


@cache
def compiled(backend, name, heads):
    model = load_program(open_synthetic(f"synthetic:{name}?seed=1&format=w8"), heads=heads)
    return backends()[backend]().compile(model.program, model.weights, CompileOptions(threads=1))


def drafted(depth):
    return Speculation(HeadDrafter(), lambda prompt_tokens: FixedDepth(depth))


def asked(executable, number, length, max_tokens=14, **options):
    ids = np.random.default_rng(number).integers(0, 300, length).tolist()
    chosen = GenerateOptions(max_tokens=max_tokens, **{"seed": 0, **options})
    return make_request(ids, chosen, executable.program, ())


def streams(executable, requests, speculation, **options):
    with Engine(executable, TOKENIZER, **options) as engine:
        made = [engine.submit(r, speculation=speculation) for r in requests]
        engine.run()
    assert not any(one.stats.drafts.error for one in made)
    return [facts(one) for one in made]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "heads"), MODELS)
@pytest.mark.parametrize("backend", backends())
def test_a_batch_with_a_head_is_the_batch_without(backend, name, heads, way):
    executable = compiled(backend, name, heads)
    count = 6 if backend == "cpu" else 2
    requests = [asked(executable, i, 3 + 5 * i, **WAYS[way]) for i in range(count)]
    expected = streams(executable, requests, None)
    for depth in (1, 4) if backend == "cpu" else (3,):
        assert streams(executable, requests, drafted(depth)) == expected


@pytest.mark.parametrize(("name", "heads"), MODELS)
def test_kept_prefixes_with_rows_of_other_texts_change_nothing(name, heads):
    executable = compiled("cpu", name, heads)
    base = asked(executable, 1, 90)
    others = [base, asked(executable, 1, 60), asked(executable, 2, 40)]
    longer = [
        make_request([*base.prompt[:cut], 7, 8, 9], GenerateOptions(max_tokens=9, seed=0),
                     executable.program, ())
        for cut in (20, 64, 80)
    ]  # fmt: skip
    expected = [streams(executable, [r], None)[0] for r in (*others, *longer)]
    cache = PrefixCache(executable, 8)
    found, reused = [], 0
    with Engine(executable, TOKENIZER, prefixes=cache) as engine:
        for request in (*others, *longer):
            one = engine.submit(request, speculation=drafted(3))
            engine.run()
            found.append(facts(one))
            reused += one.stats.reused_tokens
    cache.clear()
    assert found == expected and reused > 0


def test_a_sequence_that_loses_its_place_is_drafted_for_again():
    executable = compiled("cpu", "tiny-llama", "mtp")
    request = asked(executable, 5, 30, 20)
    (expected,) = streams(executable, [request], None)
    with Engine(executable, TOKENIZER) as engine:
        one = engine.submit(request, speculation=drafted(3))
        for keep in (0, 25, 0, 10):
            for _ in range(3):
                engine.step()
            engine.preempt(one, keep)
        engine.run()
    assert facts(one) == expected and one.stats.drafts.drafted > 10


@pytest.mark.parametrize("backend", backends())
def test_a_head_that_fails_ends_drafting_and_no_more(backend):
    """Its weights leave the domain: the backend clears the sequence, whose rows are fed again."""
    model = load_program(open_synthetic("synthetic:tiny-llama?format=f32"), heads="mtp")
    bad = Weight.from_floats(np.full((64, 128), 2.0**49, np.float32))
    weights = {**model.weights, "mtp.fc.weight": bad}
    executable = backends()[backend]().compile(model.program, weights, CompileOptions(threads=1))
    request = asked(executable, 6, 20)
    (expected,) = streams(executable, [request], None)
    with Engine(executable, TOKENIZER) as engine:
        one = engine.submit(request, speculation=drafted(3))
        engine.run()
    assert facts(one) == expected
    assert "SequenceFailedError" in one.stats.drafts.error


@pytest.mark.parametrize("draft", ["mtp", "mimo", "auto"])
def test_the_command_line_loads_the_head_that_it_drafts_with(draft):
    words = ["generate", "synthetic:tiny-llama", "--ids", "5,6,7", "-n", "12", "-b", "cpu"]
    plain = CliRunner().invoke(cli, words)
    made = CliRunner().invoke(cli, [*words, "--draft", draft, "--draft-depth", "3", "--stats"])
    assert (plain.exit_code, made.exit_code) == (0, 0)
    assert made.stdout == plain.stdout
    named = "lookup" if draft == "auto" else f"{draft}+lookup"
    assert f"drafted by {named}" in made.stderr


def test_the_server_and_a_chat_load_the_head_that_they_draft_with(monkeypatch):
    pytest.importorskip("starlette")
    loaded = []

    def seen(names, models, load, options, ready):
        for model in (models[names[0]], load(names[0])):  # at the start, and when one is asked for
            loaded.append("draft_head" in model.program.facts)
            model.close()

    monkeypatch.setattr("cortiq.serve.start.serve_models", seen)
    monkeypatch.setattr("cortiq.serve.logs.configure_logging", lambda *given: None)
    words = ["synthetic:tiny-llama", "-b", "cpu", "--threads", "1"]
    for draft in ("mtp", "lookup"):
        made = CliRunner().invoke(cli, ["serve", *words, "--draft", draft])
        assert made.exit_code == 0, made.output
    assert loaded == [True, True, False, False]

    def refused(name, options):
        loaded.append(options["heads"])
        raise RequestError("enough")

    monkeypatch.setattr(import_module("cortiq.cli.chat"), "load_model", refused)
    made = CliRunner().invoke(cli, ["chat", *words, "--draft", "mtp"], input="hello\n")
    assert "enough" in str(made.exception) and loaded[4:] == ["mtp"]


def test_a_model_without_a_head_says_so():
    with (
        cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1) as model,
        pytest.raises(RequestError, match="loaded without a draft head"),
    ):
        model.generate("text", draft="mtp")
    with pytest.raises(RequestError, match="there is no draft head 'nothing'"):
        cortiq.load("synthetic:tiny-llama", heads="nothing")
    for name, sentence in (
        ("tiny-mimo", "like no layer of this model"),
        ("tiny-mtp", "a draft head in addition to the program's own entry mtp"),
        ("mini-gemma4_text", "draft modules of layers that take per_layer"),
    ):
        with pytest.raises(UnsupportedError, match=sentence):
            cortiq.load(f"synthetic:{name}", backend="cpu", heads="mtp")


def test_neither_fingerprint_nor_digest_knows_of_a_head():
    with (
        cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1) as bare,
        cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1, heads="mtp") as headed,
    ):
        one = bare.generate("text", max_tokens=8)
        two = headed.generate("text", max_tokens=8, draft="mtp", draft_depth=2)
        assert (one.fingerprint, one.digest) == (two.fingerprint, two.digest)
        assert bare.fingerprint == headed.fingerprint
        assert one.placement == two.placement
        assert one.receipt().stated["placement"] == two.receipt().stated["placement"]
