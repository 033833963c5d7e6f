"""The lint of names finds a class name with two meanings, and openings that say nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("lint_names", ROOT / "tools" / "lint_names.py")
lint_names = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lint_names)


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_class_name_has_one_meaning(tmp_path):
    files = {"tools/a.py": "class Step: ...\n", "examples/b.py": "def f():\n    class Step: ...\n"}
    (problem,) = lint_names.check(tree(tmp_path, files))
    assert problem == "tools/a.py:1: class Step is also defined at examples/b.py:2"


def test_shared_names_are_shared_only_within_their_packages(tmp_path):
    inside = {f"cortiq/models/{name}.py": "class Config: ...\n" for name in "ab"}
    assert lint_names.check(tree(tmp_path, inside), ["cortiq/"]) == []
    outside = {"tools/c.py": "class Config: ...\n"}
    (problem,) = lint_names.check(tree(tmp_path, outside), ["cortiq/"])
    assert problem.startswith("tools/c.py:1: class Config is also defined at cortiq/models/a.py:1,")


@pytest.mark.parametrize(
    ("text", "opening"),
    [
        ('"""What it does."""\n', "What"),
        ('class A:\n    """How a model is served."""\n', "How"),
        ('def f():\n    """The same, for all rows."""\n', "The same"),
        ('"""Whatever sequences need."""\n', None),
        ('def f():\n    """Return what is left."""\n', None),
    ],
)
def test_openings(tmp_path, text, opening):
    problems = lint_names.check(tree(tmp_path, {"tools/a.py": text}))
    assert [f"{opening!r}" in problem for problem in problems] == [True] * (opening is not None)


def test_pending_packages_are_checked_when_they_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(lint_names, "PENDING", ("tools/a",))
    root = tree(tmp_path, {"tools/a.py": '"""What it does."""\n'})
    assert lint_names.check(root) == []
    assert len(lint_names.check(root, ["tools/"])) == 1
