"""Runs of the kit: in several processes, cut short, and what their reports say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from cortiq.backend import Kernel
from cortiq.errors import BackendError, RequestError
from cortiq.ir import ops
from cortiq.numerics import scalar
from cortiq.numerics.contract import F32, snap
from cortiq.plugins import use_files
from cortiq_conformance.catalogue import cases
from cortiq_conformance.causes import stands_on
from cortiq_conformance.cli import conform
from cortiq_conformance.compare import Divergence, contiguous_ranges, first_difference
from cortiq_conformance.json_file import JsonFile
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.runner import run, select
from cortiq_conformance.workers import RunSpec, WorkerPool, describe_exit
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.kernels import KERNELS

PLUGIN = """
import multiprocessing, os, signal
from cortiq.backend import Declined
from cortiq.hookspecs import hookimpl
from cortiq.ir import ops
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.executable import ReferenceExecutable
from cortiq_reference.kernels import KERNELS

def dies(call, *inputs):
    os.kill(os.getpid(), signal.SIGSEGV)

def ends(call, *inputs):
    os._exit(3)

def other(call, x):
    if call.op.factor == -3:
        return KERNELS[ops.Scale](call, x)[1:]
    return KERNELS[ops.Scale](call, x) * (2 if call.op.factor == 0.1 else 1)

def short(call, *inputs):
    return KERNELS[ops.SoftCap](call, *inputs)[1:]

class Executable(ReferenceExecutable):
    name = "planted"
    kernels = {**KERNELS, ops.Add: dies, ops.Multiply: ends, ops.Scale: other, ops.SoftCap: short}

class Planted(ReferenceBackend):
    name, priority = "planted", -1
    def devices(self):
        if os.environ.get("PLANTED") == "no process" and multiprocessing.parent_process():
            os._exit(4)
        return super().devices()
    def supports(self, node, graph, program):
        if node.op.kind == "ScaleRows":
            return Declined(f"no {node.op.kind} for {node.name}")
        return super().supports(node, graph, program)
    def compile(self, program, weights, options):
        return Executable(program, weights, options)

@hookimpl
def cortiq_backends():
    return [Planted()]
"""


@pytest.fixture
def planted(tmp_path):
    """The name of a backend from a file, whose kernels are wrong in several ways."""
    path = tmp_path / "planted.py"
    path.write_text(PLUGIN)
    use_files([path])
    yield path
    use_files([])


def conformed(tmp_path, *arguments):
    """Exit code, output, and the JSON report without times, of a run on the planted backend."""
    path = tmp_path / "report.json"
    command = ["-b", "planted", "--level", "0", "--json", str(path), *arguments]
    done = CliRunner().invoke(conform, command)
    facts = json.loads(path.read_text())
    for result in facts["results"]:
        assert result.pop("seconds") >= 0
    return done.exit_code, done.stdout, facts


@pytest.mark.parametrize(
    ("arguments", "outcomes"),
    [
        (["--only", "level0/Sc"], ["error", "different", "same", "same", "declined"]),
        (["--only", "oft", "--stop-early"], [*["error"] * 3, "same", "same"]),
    ],
)
def test_several_processes_make_the_report_of_one(planted, tmp_path, arguments, outcomes):
    more = [*arguments, "--out", str(tmp_path / "out")]
    alone, together = (conformed(tmp_path, *more, *jobs) for jobs in ([], ["--jobs", "2"]))
    assert alone == together
    code, _, facts = alone
    assert code == 1
    assert sorted(r["outcome"] for r in facts["results"]) == sorted(outcomes)
    early = "--stop-early" in arguments
    assert facts["cut_short"] == ("stopped after the first stage with a failure" if early else "")
    assert early is (facts["cases"] < facts["listed"])


def test_a_process_that_dies_is_an_error_of_its_case_and_the_rest_goes_on(planted):
    report = run("planted", levels=(0,), only="exponents from", jobs=2)
    found = {r.case.family: r for r in report.results}
    assert found["Add"].reason == "the process that ran it died: SIGSEGV, signal 11"
    assert found["Multiply"].reason == "the process that ran it died: exit code 3"
    others = {r.outcome for family, r in found.items() if family not in ("Add", "Multiply")}
    assert others == {CaseOutcome.SAME}
    assert not report.cut_short and not report.passed


def test_a_process_that_cannot_begin_is_an_error_of_the_run(planted, monkeypatch):
    monkeypatch.setenv("PLANTED", "no process")
    with pytest.raises(BackendError, match="ended before its first case: exit code 4"):
        run("planted", levels=(0,), only="level0/ScaleRows", jobs=2)
    work = RunSpec("nobody", (), (0,), "quick", None, "level0/Slice", True, None)
    with WorkerPool(work, [], 1) as workers, pytest.raises(BackendError, match="is named 'nobody'"):
        list(workers.ran([0], lambda at: None))


def test_several_processes_need_a_name():
    with pytest.raises(RequestError, match="find a backend by its name"):
        run(ReferenceBackend(), levels=(0,), only="level0/Slice", jobs=2)


def test_ends_have_names():
    assert [describe_exit(code) for code in (-9, -250, 7)] == [
        "SIGKILL, signal 9",
        "signal 250",
        "exit code 7",
    ]


def interrupting(monkeypatch, error):
    """The reference, whose third executable raises an error."""
    made, compile = [], ReferenceBackend.compile

    def counted(self, *given):
        made.append(1)
        if len(made) == 3:
            raise error
        return compile(self, *given)

    monkeypatch.setattr(ReferenceBackend, "compile", counted)


def test_an_interrupted_run_leaves_its_report(monkeypatch, tmp_path):
    interrupting(monkeypatch, KeyboardInterrupt())
    file = JsonFile(tmp_path / "report.json")
    with pytest.raises(KeyboardInterrupt):
        watch = lambda report, over: file.update(report, over=over)  # noqa: E731
        run("reference", levels=(0,), only="level0/Add[", watch=watch)
    facts = json.loads(file.path.read_text())
    assert [r["outcome"] for r in facts["results"]] == ["same", "same"]
    assert (facts["cut_short"], facts["passed"], facts["listed"]) == ("interrupted", False, 3)
    assert facts["failures"][0] == "cut short: interrupted"


def test_the_command_shows_and_writes_what_ran_before_an_interrupt(monkeypatch, tmp_path):
    interrupting(monkeypatch, KeyboardInterrupt())
    reports = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    done = CliRunner().invoke(conform, ["-b", "reference", "--level", "0", "--only", "level0/Add[",
                                        *reports])  # fmt: skip
    assert done.exit_code != 0
    assert "2 of 3 cases" in done.stdout and "cut short: interrupted" in done.stdout
    assert (tmp_path / "r.xml").exists()
    assert json.loads((tmp_path / "r.json").read_text())["cut_short"] == "interrupted"


def test_a_run_whose_process_dies_leaves_what_ran_and_names_what_was_under_way(planted, tmp_path):
    path = tmp_path / "report.json"
    command = [sys.executable, "-m", "cortiq", "--plugin", str(planted), "conform", "-b", "planted"]
    command += ["--level", "0", "--only", "level0/Ad", "--json", str(path)]
    kept = "level0/Add[every pair of edge values]"
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -11, done.stderr
    facts = json.loads(path.read_text())
    assert facts["running"] == [kept] and facts["passed"] is False
    assert facts["cut_short"] == "the process that ran the cases ended"


def test_a_backend_that_exits_is_an_error_of_the_case(monkeypatch):
    interrupting(monkeypatch, SystemExit(0))
    report = run("reference", levels=(0,), only="level0/Add[")
    assert [r.outcome for r in report.results] == [
        CaseOutcome.SAME,
        CaseOutcome.SAME,
        CaseOutcome.ERROR,
    ]
    assert "SystemExit" in report.results[-1].reason


def test_a_report_to_a_pipe_is_written_once(tmp_path):
    read, write = os.pipe()
    report = run("reference", levels=(0,), only="level0/Add[")
    file = JsonFile(f"/dev/fd/{write}")
    file.update(report, over=False)
    file.update(report, over=True)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert json.load(pipe)["cases"] == 3


def with_kernel(op, function):
    """The reference with a kernel of somebody else, which `placement` names."""
    backend = ReferenceBackend()
    backend.name = "acme"
    backend.use_kernel(Kernel("acme", op, function, "own"))
    return backend


def test_what_is_still_anothers_is_said_by_operator_and_layout():
    backend = with_kernel(ops.RMSNorm, KERNELS[ops.RMSNorm])
    report = run(backend, levels=(0,), only="Norm")
    assert report.passed
    (owner, table), *rest = report.computed_by_others().items()
    assert owner == "reference" and not rest
    assert "LayerNorm" in table and "RMSNorm" not in table
    facts = report.as_dict()
    assert set(facts["coverage_by"]) == {"reference", "acme/own"}
    assert set(facts["coverage_by"]["acme/own"]) == {"RMSNorm"}
    assert facts["still_others"] == report.computed_by_others()


def test_an_operator_of_which_another_computes_a_part_has_that_part_listed(monkeypatch):
    report = run("reference", levels=(0,), only="level0/MatMul[f32")
    mine = {key: count for key, count in report.covered.items() if key[0] == "MatMul"}
    report.backend = "acme"
    report.covered.update({(op, t, layout, "acme"): 1 for op, t, layout, _ in mine})
    report.covered[("MatMul", "q16", "w8", "reference")] += 1
    assert report.computed_by_others()["reference"]["MatMul"] == {"q16": ["w8"]}
    from cortiq_conformance.cli.print_report import print_report

    lines = []
    monkeypatch.setattr("click.echo", lines.append)
    print_report(report)
    still = next(line for line in lines if line.startswith("still the reference's: "))
    assert "MatMul (q16 × w8)" in still


def wrong_exp(x):
    """e^x one unit in the last place higher."""
    return np.nextafter(scalar_exp(x), F32(np.inf))


scalar_exp = scalar.exp


def activation(call, x):
    """The functions, of an exponential that is wrong."""
    right, scalar.exp = scalar.exp, wrong_exp
    try:
        return snap(scalar.ACTIVATIONS[call.op.function](x), call.faults)
    finally:
        scalar.exp = right


def test_a_shared_cause_is_named_before_what_stands_on_it(monkeypatch):
    report = run(with_kernel(ops.Activation, activation), levels=(0,), stop_early=True)
    assert report.causes() == ["exp"] and report.blamed() == {"Activation"}
    from cortiq_conformance.cli.print_report import print_report

    lines = []
    monkeypatch.setattr("click.echo", lines.append)
    print_report(report)
    assert "look first at: exp; these failures follow from it: Activation" in lines


@pytest.mark.parametrize("cause", ["exp", "sigmoid", "tanh", "relu"])
def test_what_stands_on_a_function_is_what_changes_with_it(monkeypatch, cause):
    x = np.linspace(-6, 6, 4001).astype(F32)
    compute = {**scalar.ACTIVATIONS, "SoftCap": lambda x: scalar.soft_cap(x, 1.0)}
    before = {name: function(x) for name, function in compute.items()}
    right = getattr(scalar, cause)
    monkeypatch.setattr(scalar, cause, lambda x: right(x) * F32(1.25))
    changed = {n for n, function in compute.items() if not np.array_equal(function(x), before[n])}
    # A function of the table is looked up there and is its own; `exp` is `exponential` there.
    expected = {name for name in compute if cause in stands_on(name)}
    assert changed - {"exp" if cause == "exp" else ""} == expected


def test_the_rows_that_differ_are_listed():
    def three_rows(call, a, b):
        y = KERNELS[ops.Add](call, a, b)
        y[[3, 4, 5, 9]] += F32(1)
        return y

    report = run(with_kernel(ops.Add, three_rows), levels=(0,), only="level0/Add[exponents")
    (result,) = report.results
    assert result.divergence.rows == ((3, 5), (9, 9))
    assert re.search(r"\d+ of \d+ differ in rows 3-5 and 9", result.reason), result.reason
    assert result.as_dict()["divergence"]["rows"] == ((3, 5), (9, 9))


def test_stretches_hold_every_place_once():
    generator = np.random.default_rng(0)
    for density in (0.0, 0.1, 0.5, 0.9, 1.0):
        places = np.flatnonzero(generator.random(200) < density)
        found = [at for first, last in contiguous_ranges(places) for at in range(first, last + 1)]
        assert found == places.tolist()
        pairs = list(zip(contiguous_ranges(places), contiguous_ranges(places)[1:], strict=False))
        assert all(left[1] + 1 < right[0] for left, right in pairs)


def test_many_stretches_are_counted():
    made = Divergence(0, "Add", "y", 0, (), "0x0", "0x1", "0", "1", 1, 20, 40)
    rows = tuple((2 * at, 2 * at) for at in range(20))
    assert "in rows 0, 2, 4, 6, 8, 10, 12, 14 and 12 more" in replace(made, rows=rows).sentence()


@pytest.mark.parametrize(
    ("got", "sentence"),
    [
        (np.zeros((3, 4)), "y is float64, expected float32"),
        (np.zeros((2, 4), F32), "y has 2 rows, expected 3"),
        (np.zeros((3, 5), F32), r"y has shape \[5\], expected \[4\]"),
    ],
)
def test_another_type_or_number_of_rows_is_said(got, sentence):
    found = first_difference({"y": np.ones((3, 4), F32)}, {"y": got}, 0, "Add")
    assert re.search(sentence, found.sentence())


def test_several_texts_select_the_cases_of_each():
    asked = ["--level", "0", "--list", "--only", "level0/add[", "--only", "level0/Shift["]
    listed = CliRunner().invoke(conform, asked).stdout.splitlines()
    alone = {text: select(cases((0,)), text) for text in ("level0/Add[", "level0/Shift[")}
    assert all(alone.values())
    assert set(listed[:-1]) == {case.id for found in alone.values() for case in found}
    assert listed[-1] == f"{len(listed) - 1} cases"


@pytest.mark.parametrize("kind", ["json", "junit", "html"])
def test_reports_without_a_folder_are_refused_before_anything_is_computed(kind, tmp_path):
    command = ["-b", "reference", "--level", "0", f"--{kind}", str(tmp_path / "none" / "x")]
    made = CliRunner().invoke(conform, command)
    assert isinstance(made.exception, RequestError) and not made.stdout
