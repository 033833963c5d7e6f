"""Pages agree with the code: sentences that it prints, tables, variables."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cortiq
from cortiq.models.registry import OWN
from cortiq.options import OptionSet, environment_name, specs

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"


def load_small(name, **options):
    assert name == "smollm2"
    model = load("synthetic:tiny-llama", **{"backend": "reference", **options})
    model.tokenizer.chat_templates["default"] = TEMPLATE
    return model


load = cortiq.load


def test_sentence_of_the_last_block_is_what_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(cortiq, "load", load_small, raising=False)
    blocks = BLOCK.findall((ROOT / "docs/python-api.md").read_text("utf-8"))
    exec("\n".join([blocks[0], blocks[-1]]), {})
    assert capsys.readouterr().out.splitlines()[-1] in blocks[-1]


@pytest.mark.parametrize("tool", ["model_table.py", "tables.py"])
def test_tables_are_what_the_code_says(tool):
    done = subprocess.run([sys.executable, ROOT / "tools" / tool], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_counts_the_families():
    (count,) = re.findall(
        r"table of families\S* has (\d+):", (ROOT / "README.md").read_text("utf-8")
    )
    assert int(count) == len(OWN)


def test_variables_on_the_page_are_those_of_the_options():
    page = (ROOT / "docs/command-line.md").read_text("utf-8")
    known = {environment_name(name) for o in OptionSet.__subclasses__() for name in specs(o)}
    known |= {"CORTIQ_CACHE", "CORTIQ_PLUGINS", "CORTIQ_TRACEBACK"}
    assert set(re.findall(r"CORTIQ_[A-Z_]+", page)) <= known


def test_the_glossary_names_what_there_is():
    rows = re.findall(r"\| (`[^|]*) \|$", (ROOT / "docs/glossary.md").read_text("utf-8"), re.M)
    assert len(rows) > 50
    for row in rows:
        path, *names = re.findall(r"`([^`]+)`", row)
        assert (ROOT / path).exists(), row
        for name in names:
            text, (owner, _, member) = (ROOT / path).read_text("utf-8"), name.partition(".")
            assert re.search(rf"^(class|def|async def) {owner}\b|^{owner}\b.* = ", text, re.M), row
            assert not member or re.search(rf"^    (def )?{member}\b", text, re.M), row
