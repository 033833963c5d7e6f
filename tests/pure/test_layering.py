"""Every package imports only what the written list allows: `tools/layers.py`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check_layers as layers  # noqa: E402


def found_in(folder, name, source):
    """The imports of one file put into a tree of its own, beside empty ones to import."""
    for path in ("cortiq/engine/engine.py", "cortiq/model/model.py", name):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    (folder / name).write_text(source)
    return list(layers.imports(folder))


def without_unused(problems):
    return [line for line in problems if "exemption" not in line]


def test_packages_import_only_what_the_list_allows():
    assert layers.breaches(list(layers.imports(ROOT))) == []


def test_the_page_shows_the_floors_of_the_list():
    text = layers.PAGE.read_text("utf-8")
    assert layers.page(text) == text


@pytest.mark.parametrize(
    "source",
    [
        "from cortiq.model.model import Model",
        "from cortiq.model import model",
        "import cortiq.model.model",
        "def late():\n    from cortiq.model.model import Model",
        "if TYPE_CHECKING:\n    from cortiq.model.model import Model",
        "class Late:\n    def late(self):\n        import cortiq.model.model as m",
    ],
)
def test_an_upward_import_is_found_wherever_it_stands(tmp_path, source):
    found = found_in(tmp_path, "cortiq/engine/engine.py", source)
    (line,) = without_unused(layers.breaches(found))
    assert "cortiq/engine/engine.py:" in line and "engine imports model" in line


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("backends/cpu/cortiq_cpu/run.py", "import cortiq.engine.engine", "may not import engine"),
        ("cortiq/bench/b.py", "import cortiq.serve.app", "bench imports serve"),
        ("cortiq/newcomer/a.py", "import cortiq.errors", "newcomer is not on the list"),
        ("cortiq/engine/a.py", "import cortiq.newcomer", "not on a lower floor"),
        ("cortiq/engine/a.py", "import cortiq", "engine imports cortiq"),
    ],
)
def test_what_the_list_does_not_name_is_refused(tmp_path, name, source, says):
    (line,) = without_unused(layers.breaches(found_in(tmp_path, name, source)))
    assert says in line


def test_downward_imports_and_those_of_others_pass(tmp_path):
    source = "import numpy\nfrom cortiq.engine import engine\nfrom cortiq.model import other"
    found = found_in(tmp_path, "cortiq/model/a.py", source)
    assert [(f.importer, f.imported) for f in found] == [("model", "engine")]
    assert without_unused(layers.breaches(found)) == []


def test_an_exemption_that_nothing_needs_is_named():
    assert len(layers.breaches([])) == len(layers.EXEMPTIONS)


def test_relative_imports_are_refused():
    with pytest.raises(ValueError, match="relative"):
        list(layers.imported_modules(ast.parse("from . import model"), {}))


def test_modules_import_one_another_only_where_the_list_says_so():
    assert layers.unlisted_cycles(layers.module_cycles(ROOT)) == []


def test_a_cycle_through_lazy_imports_is_found(tmp_path):
    found_in(tmp_path, "cortiq/engine/a.py", "def late():\n    from cortiq.engine.b import B")
    (tmp_path / "cortiq/engine/b.py").write_text("from cortiq.engine import c")
    (tmp_path / "cortiq/engine/c.py").write_text("import cortiq.engine.a")
    group = ["cortiq.engine.a", "cortiq.engine.b", "cortiq.engine.c"]
    assert layers.module_cycles(tmp_path) == [group]
    assert ", ".join(group) in layers.unlisted_cycles([group])[0]
    (tmp_path / "cortiq/engine/c.py").write_text("import cortiq.errors")
    assert layers.module_cycles(tmp_path) == []


def test_every_package_has_one_floor():
    names = [name for _, packages in layers.FLOORS for name in packages]
    assert len(names) == len(set(names))
    assert set(names) == {
        layers.package_of(m) for m in layers.modules(ROOT) if m.split(".")[0] == "cortiq"
    }
