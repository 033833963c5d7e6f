"""`make quick`: which tests a change asks for, and how many of them fit into the time."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("quick", ROOT / "tools/quick.py")
quick = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(quick)


@pytest.mark.parametrize(
    ("changed", "module"),
    [
        ("backends/cpu/native/rows.c", "backends/cpu/cortiq_cpu/native.py"),
        ("backends/wgpu/cortiq_wgpu/shaders/rows.wgsl",
         "backends/wgpu/cortiq_wgpu/shader_source.py"),
        ("docs/acceptance.md", "tests/mutants.py"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_module_is_its_readers(changed, module):
    others = [ROOT / "cortiq/errors.py", ROOT / "tests/pure/test_gguf.py"]
    assert quick.naming(ROOT / changed, [ROOT / module, *others]) == {ROOT / module}


def test_tests_named_after_a_folder_are_near():
    tests = [Path("test_serve_gate.py"), Path("test_worker.py"), Path("test_engine.py")]
    found = quick.named_after(ROOT / "cortiq/serve/worker.py", tests)
    assert found == set(tests[:2])


def test_the_nearest_come_first_the_cheap_before_the_dear_and_what_is_left_is_named(
    tmp_path, monkeypatch
):
    costs = {"far.py": 1.0, "dear.py": 70.0, "cheap.py": 2.0, "second.py": 50.0, "last.py": 5.0}
    table = tmp_path / "seconds.json"
    table.write_text(json.dumps(costs))
    monkeypatch.setattr(quick, "MEASURED", table)
    distances = {"far.py": 2, "dear.py": 1, "cheap.py": 1, "second.py": 1, "last.py": 3}
    tests = [(distance, ROOT / name) for name, distance in distances.items()]
    shares, left = quick.shared_out(tests)
    names = [[Path(path).name for path in share] for share in shares]
    assert names == [["cheap.py", "dear.py"], ["second.py"]]
    assert left == ["far.py", "last.py"]


def test_measured_files_are_there():
    known = json.loads(quick.MEASURED.read_text("utf-8"))
    assert len(known) > 50
    assert [name for name in known if not (ROOT / name).is_file()] == []
