"""A broken plugin is a sentence, and breaks nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from cortiq.backend import Backend, Device, Versions
from cortiq.errors import BackendError
from cortiq.hookspecs import hookimpl
from cortiq.plugins import Plugins, find_backend, load_plugins, selection, use_files

GOOD = """
from cortiq.backend import Device, Supported, Versions
from cortiq.hookspecs import hookimpl

class Good:
    name, priority, versions = {name!r}, {priority}, Versions()
    def devices(self): return [Device("one"), Device("two:b")]
    def supports(self, node, graph, program): return Supported()
    def compile(self, program, weights, options): raise NotImplementedError

@hookimpl
def cortiq_backends(): return [Good()]
"""

BROKEN = {
    "import_error": ("import there_is_no_such_module", "cannot be imported: ModuleNotFoundError"),
    "syntax_error": ("def f(:", "cannot be imported: SyntaxError"),
    "exits": ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    "wrong_signature": (
        "@hookimpl\ndef cortiq_backends(registry): return []",
        "a hook has the wrong signature",
    ),
    "misspelt": ("@hookimpl\ndef cortiq_backend(): return []", "did you mean cortiq_backends?"),
    "unmarked": ("def cortiq_backends(): return []", "not marked with @hookimpl"),
    "no_hook": ("x = 1", "implements no hook"),
    "raises": ("@hookimpl\ndef cortiq_backends(): raise OSError('disk on fire')", "disk on fire"),
    "returns_none": ("@hookimpl\ndef cortiq_backends(): pass", "cortiq_backends returned None"),
    "returns_text": ("@hookimpl\ndef cortiq_backends(): return 'acme'", "it returns a list"),
    "not_a_backend": (
        "@hookimpl\ndef cortiq_backends(): return [object()]",
        "it lacks name, priority, versions, devices, supports, compile",
    ),
    "a_class": ("@hookimpl\ndef cortiq_backends(): return [Good]", "Good is a class"),
    "bad_name": ("Good.name = 'a:b'", "cannot be the name of a backend"),
    "bad_priority": ("Good.priority = 'high'", "is not an integer"),
    "no_versions": ("Good.versions = None", "built for hookspec version None; this cortiq has"),
    "other_hookspec": ("Good.versions = Versions(hookspec=99)", "hookspec version 99"),
    "other_ir": ("Good.versions = Versions(ir=99)", "ir version 99"),
    "other_contract": ("Good.versions = Versions(contract=99)", "contract version 99"),
    "twice": ("@hookimpl\ndef cortiq_backends(): return [Good(), Good()]", "twice"),
    "duplicate": ("Good.name = 'good'", "brings the backend 'good', which good 1.0 brings already"),
    "overlays": ("@hookimpl\ndef cortiq_overlays(): return [1]", "not OverlayKinds"),
    "family": ("@hookimpl\ndef cortiq_families(): return [1]", "names no ARCHITECTURES"),
    "command": ("@hookimpl\ndef cortiq_commands(): return [1]", "not a click command"),
}


def distribution(folder: Path, name: str, source: str, points: str | None = None) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = f"{name} = {name}" if points is None else points
    info.joinpath("entry_points.txt").write_text(f"[cortiq.plugins]\n{points}\n")


def good(name: str, priority: int = 5) -> str:
    return GOOD.format(name=name, priority=priority)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with one good plugin."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("CORTIQ_PLUGINS", raising=False)
    monkeypatch.delenv("CORTIQ_BACKEND", raising=False)
    before = set(sys.modules)
    distribution(tmp_path, "good", good("good"))
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def problems(plugins: Plugins) -> dict[str, str]:
    return {p.name: p.sentence for p in plugins.problems}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_one_sentence_and_breaks_nothing_else(site: Path, kind: str) -> None:
    source, expected = BROKEN[kind]
    # Every broken plugin also brings a sound backend (unless it breaks just that one): it must
    # not be let in by half.
    distribution(site, "broken", good("broken") + source)
    if kind in ("import_error", "syntax_error", "exits", "no_hook"):
        (site / "broken.py").write_text(source)
    if kind == "unmarked":
        (site / "broken.py").write_text(good("broken").replace("@hookimpl\n", ""))
    names = ["broken", "good"]
    plugins = load_plugins(only=names)
    assert expected in problems(plugins)["broken"]
    assert "\n" not in problems(plugins)["broken"]
    assert list(problems(plugins)) == ["broken"]
    assert list(plugins.backends) == ["good"]
    assert not plugins.families
    assert not plugins.commands
    assert find_backend(None, plugins)[0].name == "good"


def test_a_good_plugin_is_loaded_with_its_source(site: Path) -> None:
    plugins = load_plugins()
    assert isinstance(plugins.backends["good"], Backend)
    assert plugins.brought_by["good"] == "good"
    assert plugins.sources["good"] == "good 1.0"
    assert "good" not in problems(plugins)


def test_plugins_of_two_managers_do_not_know_each_other(site: Path) -> None:
    first, second = load_plugins(only=["good"]), load_plugins(only=[])
    assert list(first.backends) == ["good"]
    assert not second.backends


def test_a_name_belongs_to_the_plugin_of_that_name(site: Path) -> None:
    distribution(site, "aardvark", good("good"))
    plugins = load_plugins(only=["aardvark", "good"])
    assert plugins.brought_by == {"good": "good"}
    assert list(problems(plugins)) == ["aardvark"]


def test_two_distributions_with_one_entry_point_name(site: Path) -> None:
    distribution(site, "other", good("other"), "good = other")
    plugins = load_plugins(only=["good"])
    assert len(plugins.backends) == 1
    assert "another plugin has this name" in problems(plugins)["good"]


def test_one_module_under_two_names(site: Path) -> None:
    distribution(site, "other", "", "other = good")
    plugins = load_plugins(only=["good", "other"])
    assert list(plugins.backends) == ["good"]
    assert "is the plugin 'good' once more" in problems(plugins)["other"]


def test_malformed_metadata_hides_no_other_distribution(site: Path) -> None:
    distribution(site, "broken", "", "this line has no equals sign")
    plugins = load_plugins()
    assert "good" in plugins.backends
    assert "entry_points.txt cannot be read" in problems(plugins)["broken"]


def test_the_environment_blocks_plugins(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(site, "better", good("better"))
    monkeypatch.setenv("CORTIQ_PLUGINS", "")
    assert not load_plugins().backends
    assert "better" not in sys.modules
    monkeypatch.setenv("CORTIQ_PLUGINS", " good , goood")
    plugins = load_plugins()
    assert list(plugins.backends) == ["good"]
    assert "CORTIQ_PLUGINS names it" in problems(plugins)["goood"]


def test_a_file_is_a_plugin(site: Path) -> None:
    file = site / "elsewhere" / "mine.py"
    file.parent.mkdir()
    file.write_text(good("mine", priority=9))
    plugins = load_plugins(only=[], files=[file])
    assert find_backend(None, plugins)[0].name == "mine"
    assert plugins.sources["mine"] == str(file)


@pytest.mark.parametrize("source", [None, "import there_is_no_such_module", "x = 1"])
def test_a_broken_file_the_user_named_is_an_error(site: Path, source: str | None) -> None:
    file = site / "mine.py"
    if source is not None:
        file.write_text(source)
    plugins = load_plugins(only=["good"], files=[file])
    assert list(problems(plugins)) == ["mine"]
    with pytest.raises(BackendError, match="--plugin mine"):
        find_backend("good", plugins)


def test_the_process_loads_the_files_it_was_given(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORTIQ_PLUGINS", "")
    file = site / "mine.py"
    file.write_text(good("mine"))
    use_files([file])
    try:
        assert find_backend("mine")[0].name == "mine"
    finally:
        use_files([])


def test_entry_points_can_be_given(site: Path) -> None:
    point = EntryPoint("named", "good", "cortiq.plugins")
    assert load_plugins([point]).brought_by == {"good": "named"}


class Absent:
    name, priority, versions = "absent", 100, Versions()

    def devices(self) -> list[Device]:
        raise BackendError("no accelerator was found")

    def supports(self, node: object, graph: object, program: object) -> None: ...

    def compile(self, program: object, weights: object, options: object) -> None: ...


def with_absent(site: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    module = ModuleType("absent_plugin")
    module.cortiq_backends = hookimpl(lambda: [Absent()])
    monkeypatch.setitem(sys.modules, "absent_plugin", module)
    points = [("absent", "absent_plugin"), ("good", "good")]
    return load_plugins([EntryPoint(n, v, "cortiq.plugins") for n, v in points])


def test_the_best_available_backend_is_the_default(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = with_absent(site, monkeypatch)
    assert list(plugins.backends) == ["absent", "good"]
    assert find_backend(None, plugins)[0].name == "good"


def test_an_unavailable_backend_says_why(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = with_absent(site, monkeypatch)
    with pytest.raises(BackendError, match="no accelerator was found"):
        find_backend("absent", plugins)


def test_the_environment_names_a_backend(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = with_absent(site, monkeypatch)
    monkeypatch.setenv("CORTIQ_BACKEND", "good:one")
    backend, device = find_backend(None, plugins)
    assert (backend.name, device) == ("good", "one")
    assert find_backend("good", plugins)[1] is None


def test_a_device_name_may_hold_a_colon(site: Path) -> None:
    assert find_backend("good:two:b", load_plugins(only=["good"]))[1] == "two:b"


def test_an_unknown_backend_or_device_is_named_with_what_there_is(site: Path) -> None:
    distribution(site, "broken", "import there_is_no_such_module")
    plugins = load_plugins(only=["broken", "good"])
    with pytest.raises(BackendError) as caught:
        find_backend("goood", plugins)
    text = str(caught.value)
    assert "no backend is named 'goood'" in text
    assert "Did you mean good?" in text
    assert "Not loaded: broken: cannot be imported" in text
    with pytest.raises(BackendError, match="has no device 'three'"):
        find_backend("good:three", plugins)


def test_a_name_of_other_programs_leads_to_the_backend(site: Path, monkeypatch) -> None:
    assert selection.OTHER_NAMES["cuda"] == ("triton",)
    monkeypatch.setitem(selection.OTHER_NAMES, "cuda", ("good",))
    with pytest.raises(BackendError, match=r"Did you mean good\?"):
        find_backend("cuda:0", load_plugins(only=["good"]))


def test_no_backend_at_all_is_an_error(site: Path) -> None:
    with pytest.raises(BackendError, match="no backend is available"):
        find_backend(None, load_plugins(only=[]))


def test_importing_the_seam_imports_neither_numpy_nor_a_plugin(site: Path) -> None:
    code = (
        "import sys, cortiq.plugins, cortiq.hookspecs;"
        "assert 'numpy' not in sys.modules and 'good' not in sys.modules"
    )
    path = [str(site), *[p for p in sys.path if p]]
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(path)})
