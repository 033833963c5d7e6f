"""docs/writing-a-backend.md: its steps lead where they say, and its excerpts are what is there."""

from __future__ import annotations

import ast
import re
import shlex

import pytest
from environments import fresh_python, install, run_in
from pages import ROOT, blocks, commands

from cortiq.ir import ops
from cortiq.plugins import load_plugins
from cortiq.plugins.checks import HOOKS

PAGE = ROOT / "docs/writing-a-backend.md"
BLOCKS = blocks(PAGE)
EXCERPTS = [block for block in BLOCKS if block.not_run.startswith("from ")]
COPIED = ("F32", "LANES", "canonical_sum", "snap", "rms_norm")
"""What the page says to copy from its first file."""


@pytest.mark.parametrize("block", EXCERPTS, ids=lambda block: block.where)
def test_an_excerpt_is_what_the_file_holds(block):
    source = (ROOT / block.not_run.removeprefix("from ")).read_text("utf-8")
    assert block.text in source


def test_the_page_shows_something_of_each_step():
    files = {block.not_run.rpartition("/")[2] for block in EXCERPTS}
    assert files >= {"arithmetic.py", "matrices.py", "kernels.py", "run.py", "stores.py"}


def copied(names):
    """The definitions of these names in the page's first file."""
    (source,) = (block.text for block in BLOCKS if block.text.startswith("# acme.py"))
    found = {}
    for node in ast.parse(source).body:
        name = getattr(node, "name", None) or getattr(getattr(node, "targets", [None])[0], "id", "")
        found[name] = ast.get_source_segment(source, node)
    return "\n\n\n".join(found[name] for name in names)


def package_steps():
    """Command lines of the section `A package`, in order."""
    text = PAGE.read_text("utf-8")
    section = re.search(r"^## A package\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]
    chosen = [block for block in BLOCKS if not block.language and block.text in section]
    return [line for block in chosen for line in commands(block)]


def test_the_steps_lead_from_an_empty_directory_to_level_1(tmp_path):
    steps = package_steps()
    assert steps[:3] == ["cortiq new-backend acme", "cd cortiq-acme", "pip install -e '.[test]'"]
    python, project = fresh_python(tmp_path / "environment"), tmp_path / "cortiq-acme"
    made = run_in(python, tmp_path, "-m", *shlex.split(steps[0]))
    assert made.returncode == 0, made.stderr
    install(python, project)
    delegating = run_in(python, project, "-m", *shlex.split(steps[3]))
    assert re.search(r" 0 of \d+ nodes computed by acme: passed", delegating.stdout)
    write_kernels(project / "cortiq_acme" / "kernels.py")
    one, whole = (run_in(python, project, "-m", *shlex.split(step)) for step in steps[4:6])
    assert re.search(r" (\d+) of \1 nodes computed by acme: passed", one.stdout), one.stdout
    assert re.search(r" [1-9]\d* of \d+ nodes computed by acme: passed", whole.stdout), whole.stdout
    assert (project / "conformance.html").stat().st_size > 10_000
    assert steps[6:] == ["python -m pytest -m level0", "python -m pytest"]


def write_kernels(file):
    """Apply the page's instructions to the generated file."""
    last = next(b.text for b in BLOCKS if b.not_run == "the last line of cortiq_acme/kernels.py")
    text = file.read_text()
    before, line, after = text.partition("KERNELS: Mapping[type[Op], Callable] = {}\n")
    assert line
    before = before.replace("from cortiq.ir import Op\n", "from cortiq.ir import Op, ops\n")
    before = before.replace("from collections.abc", "import numpy as np\nfrom collections.abc")
    file.write_text(f"{before}{copied(COPIED)}\n\n\n{last}{after}")


def test_every_hook_has_a_section_with_its_signature():
    page = (ROOT / "docs/plugins.md").read_text("utf-8")
    source = (ROOT / "cortiq/hookspecs.py").read_text("utf-8")
    signatures = dict(re.findall(r"^def (cortiq_\w+)(\(.*\) -> .*):$", source, re.MULTILINE))
    assert set(signatures) == set(HOOKS)
    for name, signature in signatures.items():
        section = page.partition(f"\n## {name}\n")[2]
        assert section.lstrip().startswith(f"`{name}{signature}`"), name


def test_the_examples_of_the_hooks_are_plugins(tmp_path):
    shown = [b.text for b in blocks(ROOT / "docs/plugins.md") if b.language == "python"]
    (tmp_path / "shown.py").write_text("\n\n".join(shown))
    plugins = load_plugins(only=["reference"], files=[tmp_path / "shown.py"])
    assert not plugins.problems
    assert "acme-of-this-page" in plugins.backends and "greet" in plugins.commands
    assert plugins.backends["reference"].given[ops.Add].name == "my-add"
    assert [family.__name__ for family in plugins.families] == ["cortiq.models.llama"]
