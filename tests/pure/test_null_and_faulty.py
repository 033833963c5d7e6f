"""cortiq-null logs what a backend is asked; cortiq-faulty shows what a failing report is like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cortiq.backend import Batch, CompileOptions, Row
from cortiq.errors import BackendError
from cortiq_conformance import models
from cortiq_conformance.catalogue import cases
from cortiq_conformance.faults import FAULTS
from cortiq_conformance.faults.table import DECLINES
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.runner import run, run_case, select
from cortiq_conformance.subject import Subject
from cortiq_faulty.backend import ChosenFault, DecliningBackend, faults_by_device
from cortiq_null.backend import NullBackend

PLUGINS = Path(__file__).parents[2] / "plugins"
GENERATE = ("generate", "synthetic:tiny-llama", "-p", "to be", "--max-tokens", "5", "--json")


def cortiq(package: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    file = PLUGINS / package.replace("_", "-") / package / "__init__.py"
    path = os.pathsep.join([str(file.parents[1]), os.environ.get("PYTHONPATH", "")])
    # The file is the plugin, whether or not the package is installed too.
    variables = {**os.environ, "PYTHONPATH": path, "CORTIQ_PLUGINS": "reference,cpu", **environment}
    command = [sys.executable, "-m", "cortiq", "--plugin", str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_null_gives_the_references_bits_and_says_so(tmp_path):
    log = tmp_path / "calls.jsonl"
    report = run(NullBackend(str(log)), levels=(0,), only="attention,")
    assert report.passed
    assert set(report.computed) == {"reference"}
    calls = {line["call"] for line in lines_of(log)}
    assert {"compile", "open", "forward", "rewind", "snapshot", "restore", "fork"} <= calls
    assert {"export", "import", "close", "supports"} <= calls


def test_a_generation_is_logged_call_by_call(tmp_path):
    log = tmp_path / "calls.jsonl"
    done = cortiq("cortiq_null", *GENERATE, "--backend", "null", CORTIQ_NULL_LOG=str(log))
    assert done.returncode == 0, done.stderr
    expected = cortiq("cortiq_null", *GENERATE, "--backend", "reference")
    assert json.loads(done.stdout)["digest"] == json.loads(expected.stdout)["digest"]
    forwards = [line for line in lines_of(log) if line["call"] == "forward"]
    rows = [row for line in forwards for row in line["rows"]]
    assert [row["position"] for row in rows] == list(range(len(rows)))
    assert all(line["outcomes"][0]["status"] == "completed" for line in forwards)
    assert any("Draw" in want or "Argmax" in want for row in rows for want in row["wants"])


def test_what_goes_wrong_is_logged_and_raised(tmp_path):
    log, model = tmp_path / "calls.jsonl", models.load("tiny-llama")
    executable = NullBackend(str(log)).compile(model.program, model.weights, CompileOptions())
    with pytest.raises(BackendError, match="not ours"):
        executable.forward(Batch([Row("nobody", 0, 1)]))
    assert "BackendError" in lines_of(log)[-1]["error"]
    with pytest.raises(BackendError, match="CORTIQ_NULL_LOG"):
        NullBackend(str(tmp_path)).compile(model.program, model.weights, CompileOptions())


def test_every_fault_can_be_chosen():
    assert set(faults_by_device().values()) == set(FAULTS) - {DECLINES}
    names = [device.name for device in ChosenFault().devices()]
    assert names == list(faults_by_device()) and "window-off-by-one" in names


def test_a_chosen_fault_is_found():
    (case,) = select(cases((0,)), "level0/Add[")[:1]
    subject = Subject(ChosenFault(), "sums-that-are-not-snapped")
    assert run_case(case, subject).outcome is CaseOutcome.DIFFERENT
    assert run_case(case, Subject(ChosenFault(), "all-zero")).outcome is CaseOutcome.SAME


def test_without_a_fault_it_says_how_to_choose_one():
    report = run(ChosenFault(), levels=(0,), only="level0/Add[")
    assert "choose a fault: --backend faulty:FAULT" in report.results[0].reason


def test_one_declines_everything():
    report = run(DecliningBackend(), levels=(0,), only="level0/Add[", allow_declined=True)
    assert report.backend == "faulty-declines"
    assert not report.passed and report.count(CaseOutcome.SAME) == 0


def test_the_command_shows_a_report_and_a_replay(tmp_path):
    arguments = ("--level", "0", "--only", "RMSNorm[width 576]", "--out", str(tmp_path))
    backend = ("--backend", "faulty:fused-multiply-add-in-rmsnorm")
    done = cortiq("cortiq_faulty", "conform", *backend, *arguments)
    assert done.returncode == 1
    assert "RMSNorm: y differs first at row" in done.stdout
    (file,) = tmp_path.glob("*.npz")
    again = cortiq("cortiq_faulty", "replay", str(file), *backend)
    assert again.returncode == 1 and "RMSNorm: y differs first" in again.stdout
    sound = cortiq("cortiq_faulty", "replay", str(file), "--backend", "reference")
    assert sound.returncode == 0 and "same bits" in sound.stdout
