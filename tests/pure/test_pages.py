"""The pages of the documentation: no dead link, no page left out, no block that does not run.

A block that no test can run has `<!-- not run: why -->` before it; its commands must still be ones
that the command line takes.
"""

from __future__ import annotations

import importlib.util
import io
import json
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest
from masked import loaded_plugins
from pages import DOCS, PAGES, ROOT, SPAN, anchors, blocks, commands, links, prose

import cortiq
from cortiq.cli.main import cli, main
from cortiq.plugins import use_files

MODELS = {"smollm2": "synthetic:tiny-llama", "gemma3-270m": "synthetic:tiny-gemma3"}
"""What stands for the real models where a page runs; `--chat` needs the real one."""
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
SHELL = ("sh", "")
PASSED_ON = {"conform", "replay", "bisect", "matrix"}
"""Commands of the harness, which is a package of its own and parses them."""


def name(page):
    return page.name


@pytest.fixture
def packages():
    """Have the packages whose commands and modules pages show."""
    with loaded_plugins(bounded="cortiq_bounded", masks="cortiq_masks", skills="cortiq_skills"):
        yield


def site():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools/site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"
        if page in DOCS:
            assert there.parent == page.parent, f"{page.name}: {target} is not part of the site"


def test_every_page_is_in_the_navigation_once():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = sorted(line.rpartition(": ")[2] for line in nav.splitlines() if line.endswith(".md"))
    wanted = sorted([*(page.name for page in DOCS), *site().GENERATED])
    assert listed == wanted, "the nav of mkdocs.yml has every page of docs/"


def test_generated_pages_have_all_public_names_and_no_dead_link():
    made = site().pages()
    assert tuple(made) == site().GENERATED
    for public in cortiq.__all__:
        assert public.startswith("_") or f"\n## {public}\n" in made["api.md"]
    for text in made.values():
        for target in (t for t in links_of(text) if "://" not in t):
            page = target.partition("#")[0]
            assert page in made or (ROOT / "docs" / page).is_file(), target


def links_of(text):
    return [part.partition(")")[0] for part in text.split("](")[1:]]


def test_text_of_the_changelog_begins_with_the_version_of_the_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert changes.partition("\n## ")[2].startswith(f"{version}, ")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_is_one_that_is_taken(page, packages):
    lines = [line for b in blocks(page) if b.language in SHELL for line in commands(b)]
    for line in (*lines, *(span for span in SPAN.findall(prose(page)))):
        for command in line.split("&&"):
            words = shlex.split(command.split("|")[0].split("<")[0])
            if words[:1] == ["cortiq"]:
                parse(words[1:], line)


def parse(words, line):
    """The command line takes these words; placeholders in capitals stand for any value."""
    words = [word for word in words if word not in ("...", "…")]
    command = next((w for w in words if not w.startswith("-") and not w.endswith(".py")), "")
    if command in PASSED_ON or not command or command.isupper():
        return
    found, rest = cli, words[words.index(command) :]
    while isinstance(found, click.Group) and rest:
        name = rest.pop(0).split("/")[0]  # a text may say `prefix save/load`
        found = found.get_command(click.Context(found), name)
        assert found, line
    known = {
        option
        for parameter in found.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    given = {word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"}
    assert given <= {*known, "--help"}, f"{line}: {given - known}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_of_data_are_well_formed(page):
    readers = {"toml": tomllib.loads, "json": json.loads}
    for block in blocks(page):
        if block.language in readers:
            readers[block.language](block.text)
        assert block.language in (*readers, *SHELL, "python", "text", "c", "yaml"), block.where


def load_small(called, **options):
    """A small model for the real one, with a chat template."""
    model = load(MODELS.get(called, called), **{"backend": "reference", **options})
    model.tokenizer.chat_templates["default"] = TEMPLATE
    return model


load = cortiq.load


@pytest.fixture
def acme(tmp_path):
    """The backend in one file that the page for authors shows, as a plugin of this process."""
    page = ROOT / "docs/writing-a-backend.md"
    (source,) = (b.text for b in blocks(page) if b.text.startswith("# acme.py"))
    (tmp_path / "acme.py").write_text(source)
    use_files([tmp_path / "acme.py"])
    yield
    use_files([])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_run(page, acme, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cortiq, "load", load_small, raising=False)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page):
        if block.language == "python" and not block.not_run:
            exec(compile(block.text, block.where, "exec"), vars(module))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_shell_blocks_run(page, monkeypatch, tmp_path, smollm2_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORTIQ_MAX_TOKENS", "6")
    Path("model.gguf").symlink_to(smollm2_path)
    Path("prompt.txt").write_text("The old lighthouse keeper")
    for file in ("text.txt", "README.md"):
        Path(file).write_text("A text to be predicted, token by token. " * 90)
    for block in blocks(page):
        if block.language == "sh" and not block.not_run:
            for line in commands(block):
                for command in line.split("&&"):
                    run(shlex.split(command), block.where, monkeypatch)


def run(words, where, monkeypatch):
    """Run one command line; anything but `cortiq` does not belong into a block that is run."""
    assert words[0] == "cortiq", f"{where}: {words[0]} is not run by tests"
    data = b""
    if "<" in words:
        words, data = words[: words.index("<")], Path(words[words.index("<") + 1]).read_bytes()
    if "--chat" not in words:
        words = [MODELS.get(word, word) for word in words]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(SystemExit) as exit:
        main(words[1:])
    assert exit.value.code == 0, f"{where}: {' '.join(words)}"


def test_a_block_says_why_it_is_not_run():
    for page in PAGES:
        count = page.read_text("utf-8").count("<!-- not run: ")
        assert count == sum(bool(block.not_run) for block in blocks(page)), page.name
