"""Packages that are off by default: no trace of them without, and none where nobody asks."""

from __future__ import annotations

import gc
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import cortiq
from cortiq.plugins import loading
from cortiq.plugins.candidates import installed_entry_points

ROOT = Path(__file__).parents[2]
MODEL = "synthetic:tiny-llama?seed=1&format=w8"
PACKAGES = {"skills": "cortiq_skills", "masks": "cortiq_masks", "bounded": "cortiq_bounded"}


def plugins_with(*names):
    """The installed plugins without any of these packages, and those that are named."""
    points = [p for p in installed_entry_points(lambda *_: None) if p.name not in PACKAGES]
    points += [EntryPoint(name, PACKAGES[name], "cortiq.plugins") for name in names]
    found = loading.load_plugins(points)
    assert not found.problems
    return found


def computed(monkeypatch, plugins, backend):
    """What a model is and gives, and the calls of Python that the same texts then take."""
    monkeypatch.setattr(loading, "_default", plugins)
    calls: dict[str, int] = {}

    def count(frame, event, argument):
        if event == "call":
            name = f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"
            calls[name] = calls.get(name, 0) + 1

    with cortiq.load(MODEL, backend=backend, context=64, threads=1) as model:
        made = [model.generate([5, 9, 2], max_tokens=2, temperature=0)]
        gc.collect()
        gc.disable()  # calls of finalizers that other tests left are no calls of this text
        sys.setprofile(count)
        try:
            made.append(model.generate([5, 9, 2], max_tokens=2, temperature=0))
        finally:
            sys.setprofile(None)
            gc.enable()
        facts = [(one.digest, one.fingerprint, one.token_ids) for one in made]
        return facts, model.placement, model.notes, calls


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_installed_and_unused_no_bit_no_byte_and_no_call_more(monkeypatch, backend):
    without = computed(monkeypatch, plugins_with(), backend)
    with_them = computed(monkeypatch, plugins_with(*PACKAGES), backend)
    assert with_them == without
    calls = with_them[3]
    assert sum(calls.values()) > 1000
    assert not [name for name in calls if re.search("|".join(PACKAGES.values()), name)]


@pytest.mark.parametrize("package", PACKAGES.values())
def test_nothing_of_the_core_names_the_package(package):
    folders = ("cortiq", "backends", "conformance")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")
             if path.suffix in (".py", ".c", ".h", ".toml")]  # fmt: skip
    assert len(files) > 500
    assert not [path for path in files if package in path.read_text()]


@pytest.mark.parametrize("name", PACKAGES)
def test_without_the_package_nothing_that_it_brings_is_there(monkeypatch, name):
    alone, there = plugins_with(), plugins_with(name)
    monkeypatch.setattr(loading, "_default", alone)
    kinds = ("overlays", "rewrites", "commands")
    brought = {
        kind: list(getattr(there, kind))[len(list(getattr(alone, kind))) :] for kind in kinds
    }
    assert any(brought.values())
    for rewrite in brought["rewrites"]:
        with pytest.raises(cortiq.CortiqError, match=f"no rewriting is called '{rewrite.name}'"):
            cortiq.load(MODEL, backend="reference", rewrite=[f"{rewrite.name}:"]).close()
    for kind in brought["overlays"]:
        with pytest.raises(cortiq.CortiqError):
            cortiq.load(MODEL, backend="reference", adapters=[f"a=there.{kind.name}"]).close()


@pytest.mark.parametrize("name", PACKAGES)
def test_tests_that_its_page_names_are_there(name):
    page = (ROOT / f"plugins/cortiq-{name}/ACCEPTANCE.md").read_text("utf-8")
    sources = {p.name: p.read_text("utf-8") for p in (ROOT / "tests").rglob("test_*.py")}
    found = re.findall(r"`(?:tests/\w+/)?(test_\w+\.py)?(?:::)?(test_\w+)?`", page)
    assert len(found) > 10
    for file, test in found:
        held = [sources[file]] if file else list(sources.values())
        assert not test or any(f"def {test}(" in text for text in held), f"{file}::{test}"
