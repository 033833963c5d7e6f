"""The backend in one file of docs/writing-a-backend.md: it passes, and what breaks it is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cortiq.plugins import load_plugins
from cortiq_conformance.replay import load
from cortiq_conformance.runner import run

PAGE = Path(__file__).parents[2] / "docs/writing-a-backend.md"
SOURCE = next(
    block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    if block.startswith("# acme.py")
)  # fmt: skip
NEIGHBOUR = ("y = x * r[..., None]", "y = x * np.flip(r, axis=0)[..., None]")
NO_EPS = ("np.sqrt(mean + F32(call.op.eps))", "np.sqrt(mean)")
NAN = ("return np.where(size < F32(2.0**-40), F32(0), x)", "return x * F32('nan')")
FAULT = ("y = x * r[..., None]", "y = x * F32('inf')")
NO_SNAP = ("return np.where(size < F32(2.0**-40), F32(0), x)", "return x")
SHAPE = ("y = x * r[..., None]", "return x[..., :3]")
DELEGATES = (
    "mean = canonical_sum(x * x)",
    "from cortiq.numerics import norms\n"
    "    return norms.rms_norm(x, call.weights.get('weight'), call.op.eps, call.faults)\n"
    "    mean = canonical_sum(x * x)",
)


@pytest.fixture
def acme(tmp_path):
    """The file's backend, with some text of it replaced."""

    def backend(*changes):
        path = written(tmp_path, *changes)
        return load_plugins([], files=[path]).backends["acme"]

    return backend


def written(folder, *changes):
    source = SOURCE
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    path = folder / "acme.py"
    path.write_text(source)
    return path


def conform(path, *arguments):
    command = [sys.executable, "-m", "cortiq", "--plugin", str(path), "conform", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_file_passes_as_the_page_says(tmp_path):
    done = conform(written(tmp_path), "--backend", "acme", "--level", "0", "--only", "RMSNorm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"(\d+) of \1 nodes computed by acme: passed", done.stdout)


def test_a_planted_bug_is_named_and_the_replay_command_runs(tmp_path):
    path = written(tmp_path, NO_EPS)
    only = ("--level", "0", "--only", "RMSNorm", "--out", str(tmp_path / "out"))
    done = conform(path, "--backend", "acme", *only)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "different: level0/RMSNorm[" in done.stdout and "look first at: RMSNorm" in done.stdout
    command = re.search(r"replay: cortiq (--plugin .*)", done.stdout)[1].split()
    assert command[:3] == ["--plugin", str(path), "replay"]
    cortiq = [sys.executable, "-m", "cortiq"]
    again = subprocess.run([*cortiq, *command], capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "RMSNorm: y differs first" in again.stdout
    alone = subprocess.run([*cortiq, *command[2:]], capture_output=True, text=True, check=False)
    assert f"cortiq --plugin {path} replay" in alone.stderr


def test_a_replay_file_holds_what_the_kernel_was_given(acme, tmp_path):
    backend = acme(NEIGHBOUR)
    report = run(backend, levels=(0,), only="RMSNorm[width 64]", out=tmp_path)
    stored = load(report.results[0].replay)
    kernel = {}
    exec(SOURCE, kernel)  # the right one
    call = SimpleNamespace(
        op=SimpleNamespace(eps=1e-6), weights={"weight": stored.inputs["weight weight"][0]},
        faults=np.zeros(len(stored.inputs["tokens"]), bool),
    )  # fmt: skip
    y = kernel["rms_norm"](call, stored.inputs["x"])
    assert y.tobytes() == stored.expected["y"].tobytes() != stored.got["y"].tobytes()


@pytest.mark.parametrize(
    ("change", "only", "says"),
    [
        (NEIGHBOUR, "canonical_sum", "a row sees its neighbours in the batch"),
        (NAN, "canonical_sum", "every value of the backend is NaN"),
        (SHAPE, "canonical_sum", r"returned float32\[\d+, 3\] for 'y'; it returns float32\["),
        (FAULT, "canonical_sum", "the sequence failed .*, expected completed"),
        (NO_SNAP, "RMSNorm[width 576, a row of zeros", r"below 2\^-40, or -0.*not snapped\?"),
        (DELEGATES, "placement[RMSNorm", "placement says that acme computes RMSNorm, but rms_norm"),
    ],
)
def test_the_report_says_what_the_difference_looks_like(acme, change, only, says):
    report = run(acme(change), levels=(0,), only=only)
    reasons = [result.reason for result in report.failed_results()]
    assert reasons and all(re.search(says, reason) for reason in reasons), reasons
    assert report.blamed() == {"placement" if "placement" in only else "RMSNorm"}


def test_other_nodes_are_the_references_and_no_primitive_is_accused(acme):
    report = run(acme(), levels=(0,), only="placement")
    assert list(report.failures()) == []
    assert report.computed["acme"] > 0 and report.computed["reference"] > 0


def test_nodes_are_counted_alike_whether_or_not_a_case_fails(acme):
    right = run(acme(), levels=(0, 1), only="RMSNorm")
    wrong = run(acme(NEIGHBOUR), levels=(0, 1), only="RMSNorm")
    assert right.passed and not wrong.passed
    assert right.computed == wrong.computed
