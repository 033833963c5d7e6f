"""The plugin on docs/drafting.md, run as it stands there; and its tables against the code."""

from __future__ import annotations

import re
from pathlib import Path

import cortiq
from cortiq.engine.drafters.kinds import OWN, usage
from cortiq.engine.policy.depth_trial import (
    AFFORDED,
    FIRST_REST,
    LOSING_ROUNDS,
    ZERO_AGAIN,
    ZERO_ROUNDS,
)
from cortiq.plugins import load_plugins

PAGE = (Path(__file__).parents[2] / "docs/drafting.md").read_text("utf-8")


def test_the_plugin_of_the_page_drafts(tmp_path, monkeypatch):
    file = tmp_path / "echo.py"
    file.write_text(re.search(r"^```python\n(# echo\.py\n.*?)^```", PAGE, re.M | re.S).group(1))
    plugins = load_plugins(entry_points=[], files=[file])
    assert not plugins.problems
    monkeypatch.setattr("cortiq.model.drafter_factory.default_plugins", lambda: plugins)
    with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1) as model:
        plain = model.generate("to be", max_tokens=20, ignore_eos=True)
        made = model.generate("to be", max_tokens=20, ignore_eos=True, draft="echo:3")
    assert made.token_ids == plain.token_ids
    assert made.stats.drafts.drafters["echo"].rounds > 0


def test_names_and_numbers_of_the_page_are_the_code_s():
    for kind in OWN.values():
        assert f"`{usage(kind)}`" in PAGE
    assert (ZERO_ROUNDS, ZERO_AGAIN, LOSING_ROUNDS) == (3, 2, 4)
    assert (FIRST_REST, AFFORDED) == (32, 0.01)


def test_the_acceptance_list_is_complete_and_its_tests_exist():
    page = (Path(__file__).parents[2] / "docs/acceptance.md").read_text("utf-8")
    listed: set[int] = set()
    for row in re.findall(r"^\| (T\d\d[^|]*) \|", page, re.M):
        for first, last in re.findall(r"T(\d\d)(?: to T(\d\d))?", row):
            listed |= set(range(int(first), int(last or first) + 1))
    assert listed == set(range(1, 66))
    for file, test in re.findall(r"`(test_\w+\.py)::(\w+)`", page):
        source = (Path(__file__).parent / file).read_text("utf-8")
        assert f"\ndef {test}(" in source, f"{file}::{test}"
