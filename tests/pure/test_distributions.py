"""The distributions of this repository fit together; `make wheels` builds and uses them."""

from __future__ import annotations

import re
import tomllib
from itertools import chain

import pytest
from pages import ROOT

PROJECTS = {
    path.parent.relative_to(ROOT).as_posix(): tomllib.loads(path.read_text("utf-8"))["project"]
    for folder in (".", "backends/*", "conformance", "plugins/*")
    for path in ROOT.glob(f"{folder}/pyproject.toml")
}
CORE = PROJECTS["."]


def test_all_carry_one_version_and_the_core_asks_for_exactly_that():
    versions = {project["version"] for project in PROJECTS.values()}
    assert versions == {CORE["version"]}
    asked = [*CORE["dependencies"], *chain(*CORE["optional-dependencies"].values())]
    ours = [line for line in asked if line.startswith("cortiq")]
    assert len(ours) > 2 and all(line.endswith(f"=={CORE['version']}") for line in ours)
    names = {project["name"] for project in PROJECTS.values()}
    assert {line.partition("==")[0] for line in ours} < names


@pytest.mark.parametrize("folder", PROJECTS)
def test_each_has_the_licence_and_asks_for_the_same_python(folder):
    project = PROJECTS[folder]
    assert project["license"] == "Apache-2.0" and project["license-files"][0] == "LICENSE"
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert project["requires-python"] == CORE["requires-python"]
    assert folder == "." or any(re.match("cortiq( |$|[<>=])", d) for d in project["dependencies"])


def test_extras_that_texts_speak_of_exist():
    extras = set(CORE["optional-dependencies"])
    sources = [*ROOT.glob("cortiq/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    for path in sources:
        named = re.findall(r"cortiq\[(\w+)\]", path.read_text("utf-8"))
        assert set(named) <= extras, path
