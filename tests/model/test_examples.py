"""Every example runs on SmolLM2 and shows what its page says."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

import cortiq
from cortiq.model.model import Model
from cortiq.plugins import default_plugins

FOLDER = Path(__file__).parents[2] / "examples"
QUICK = {"cpu", "reference"}
"""Backends that the examples may choose from: the others take many seconds for SmolLM2."""
SHOWN = {
    "hello.py": "Paris",
    "stream.py": "[cancelled]",
    "conversation.py": "of 72 prompt tokens were cached",
    "batch.py": "equal bits",
    "async_tasks.py": "[given up after half a second",
    "search.py": "The train to the coast",
    "choices.py": "Paris  (greedy)",
    "two_backends.py": "reference: ",
    "adapter.py": "the bits that it has alone: True",
    "receipt.py": "identical: True, 12 steps",
}
PLUGINS = {"jax_backend.py"}
"""Not programs; each has a test of its own in `tests/pure`."""


def test_the_page_lists_every_example():
    page = (FOLDER / "README.md").read_text("utf-8")
    names = {path.name for path in FOLDER.glob("*.py")}
    assert names == {*SHOWN, *PLUGINS} == {name for name in names if f"[{name}]({name})" in page}


@pytest.fixture(scope="module")
def loaded():
    """`cortiq.load` that opens a model once for all examples; what closes it is this."""
    models, load, close = {}, cortiq.load, Model.close

    def kept(name, **options):
        key = name, str(options)
        models[key] = models.get(key) or load(name, **options)
        models[key].drop_prefixes()
        return models[key]

    yield kept
    for model in models.values():
        close(model)


@pytest.mark.parametrize("name", SHOWN)
def test_example(name, smollm2_path, loaded, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)  # some write files
    monkeypatch.setattr("sys.argv", [name, str(smollm2_path)])
    monkeypatch.setattr(cortiq, "load", loaded, raising=False)
    monkeypatch.setattr(Model, "__exit__", lambda *_: None)
    here = default_plugins()
    quick = {n: b for n, b in here.backends.items() if n in QUICK}
    found = replace(here, backends=quick)
    monkeypatch.setattr(cortiq.plugins, "default_plugins", lambda: found)
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert SHOWN[name] in capsys.readouterr().out
