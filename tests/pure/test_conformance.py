"""The harness: what it lists, what its outcomes mean, what its reports hold."""

from __future__ import annotations

import json
from typing import ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from cortiq.backend import Declined
from cortiq.errors import FormatError, RequestError
from cortiq.ir import ops
from cortiq_conformance import golden, models, rewrite_golden
from cortiq_conformance.case import Case, Scenario
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.catalogue import cases, list_hash
from cortiq_conformance.cli import conform
from cortiq_conformance.faults import FaultyBackend
from cortiq_conformance.flush import flush_to_zero, is_flushing
from cortiq_conformance.junit import junit
from cortiq_conformance.probes import floats, one
from cortiq_conformance.replay import load, replay
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.runner import run, run_case
from cortiq_conformance.subject import Subject
from cortiq_reference.backend import ReferenceBackend
from cortiq_reference.executable import ReferenceExecutable
from cortiq_reference.kernels import KERNELS

SLICE = "level0/Slice[as they are]"


class Without(ReferenceBackend):
    """The reference, without some operators."""

    name = "without"

    def __init__(self, *kinds):
        self.kinds = kinds

    def supports(self, node, graph, program):
        if node.op.kind in self.kinds:
            return Declined(f"no kernel for {node.op.kind}")
        return super().supports(node, graph, program)


class ShortTable(ReferenceBackend):
    """Rotations by a table of 4096 positions, used again from its start."""

    def compile(self, program, weights, options):
        class Executable(ReferenceExecutable):
            kernels: ClassVar = {**KERNELS, ops.Rope: self.rope}

        return Executable(program, weights, options)

    @staticmethod
    def rope(call, x, position):
        return KERNELS[ops.Rope](call, x, position % 4096)


class Raising(ReferenceBackend):
    def compile(self, program, weights, options):
        raise RuntimeError("the device is gone")


@pytest.fixture(scope="module")
def whole():
    """Levels 0 and 1 on the reference, against the definitions."""
    return run(ReferenceBackend(), levels=(0, 1), use_golden=False)


def test_the_reference_passes_levels_0_and_1_against_the_definitions(whole):
    assert list(whole.failures()) == []
    assert whole.count(CaseOutcome.SAME) + whole.count(CaseOutcome.NOT_RUN) == len(whole.results)
    assert all(r.live > 0 for r in whole.results if r.outcome is CaseOutcome.SAME)


def test_the_golden_digests_are_those_of_the_definitions(whole):
    known = {level: golden.read(level)["cases"] for level in (0, 1)}
    without = [r.case for r in whole.results if r.case.id not in known[r.case.level]]
    assert {case.family for case in without} <= {"flush to zero"}
    held = [r for r in whole.results if r.case not in without and r.outcome is CaseOutcome.SAME]
    assert len(held) > 500
    assert [r.case.id for r in held if known[r.case.level][r.case.id]["digest"] != r.digest] == []


def test_levels_2_to_4_pass_on_a_tiny_model():
    """One case of each level; other tests run streams of every schedule on both backends."""
    for level, only in ((2, "whole"), (3, "in one batch"), (4, "penalties, in one batch")):
        report = run(ReferenceBackend(), levels=(level,), only=only, models=["tiny-llama"])
        assert list(report.failures()) == [] and report.levels == [level]


@pytest.mark.slow
def test_levels_2_to_4_pass_on_tiny_models():
    report = run(ReferenceBackend(), levels=(2, 3), models=["tiny-llama"])
    assert list(report.failures()) == [] and report.levels == [2, 3]
    sampled = run(ReferenceBackend(), levels=(4,), only="penalties", models=["tiny-llama"])
    assert list(sampled.failures()) == [] and len(sampled.results) == 12


def test_every_operator_and_layout_is_covered(whole):
    coverage = whole.coverage()
    assert set(coverage) == {op.__name__ for op in ops.PRIMITIVES}
    assert len(coverage["MatMul"]["q16"]) == 33 and coverage["MatMul"]["f32"] == ["f32"]


def test_listing_builds_nothing(monkeypatch):
    monkeypatch.setattr(Scenario, "__init__", lambda *given: pytest.fail("a scenario was built"))
    monkeypatch.setattr(models, "load", lambda name: pytest.fail(f"{name} was loaded"))
    assert len(list(cases(profile="full"))) > 500


def test_ids_are_unique_and_stable():
    listed = list(cases(profile="full"))
    assert len({case.id for case in listed}) == len(listed)
    assert list_hash(listed) == list_hash(cases(profile="full"))
    for case in listed:
        assert case.id.startswith(f"level{case.level}/{case.family.partition('[')[0]}[")


def test_the_same_id_gives_the_same_data_and_another_id_other_data():
    first, again, other = (CaseData(name).floats(100) for name in ("a", "a", "b"))
    assert first.tobytes() == again.tobytes() != other.tobytes()


def test_flush_to_zero_is_set_and_taken_back():
    assert not is_flushing()
    with flush_to_zero():
        assert is_flushing()
    assert not is_flushing()


def test_a_decline_is_counted_apart_and_fails_unless_allowed():
    strict = run(Without("LayerNorm"), levels=(0,), only="Norm")
    assert strict.count(CaseOutcome.DECLINED) > 0 and not strict.passed
    declined = next(r for r in strict.results if r.outcome is CaseOutcome.DECLINED)
    assert declined.reason == "LayerNorm: no kernel for LayerNorm"
    allowed = run(Without("LayerNorm"), levels=(0,), only="Norm", allow_declined=True)
    assert allowed.passed and allowed.count(CaseOutcome.DECLINED) == strict.count(
        CaseOutcome.DECLINED
    )


def test_a_declined_layer_is_run_as_its_decomposition():
    report = run(Without("Attention", "Linear"), levels=(1,), only="level1/Attention[")
    assert report.passed and report.count(CaseOutcome.DECLINED) == 0


def test_whatever_a_backend_raises_is_an_error():
    report = run(Raising(), levels=(0,), only=SLICE)
    (result,) = report.results
    assert result.outcome is CaseOutcome.ERROR
    assert "the device is gone" in result.reason and not report.passed


def test_an_expectation_of_zeros_proves_nothing():
    def zeros(source):
        return one(ops.Add(), {"a": floats(8), "b": floats(8)}).given(
            a=np.zeros((2, 8), np.float32), b=np.zeros((2, 8), np.float32)
        )

    case = Case("level0/Add[zeros]", 0, "Add", "Add", zeros)
    result = run_case(case, Subject(ReferenceBackend()))
    assert result.outcome is CaseOutcome.ERROR and "proves nothing" in result.reason


def test_a_model_that_is_not_here_fails_only_when_it_was_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("CORTIQ_CACHE", str(tmp_path))
    monkeypatch.setattr(models, "load", models.load.__wrapped__)
    quick = run(ReferenceBackend(), levels=(3,), only="gemma3")
    assert quick.count(CaseOutcome.NOT_RUN) == 1 and quick.passed
    asked = run(ReferenceBackend(), levels=(3,), only="stream[smollm2", models=["smollm2"])
    assert asked.count(CaseOutcome.NOT_RUN) == 1 and not asked.passed
    assert "cortiq pull smollm2" in asked.results[-1].reason


def test_only_the_far_end_of_a_context_shows_a_table_that_is_too_short():
    report = run(ShortTable(), levels=(0,), only="level0/Rope[")
    wrong = {result.case.id for result in report.failed_results()}
    assert wrong == {r.case.id for r in report.results if "last 8 of 131072" in r.case.id} != set()


def test_nothing_asked_for_is_a_failure():
    report = run(ReferenceBackend(), levels=(0,), only="no case is called this")
    assert list(report.failures()) == ["no case was asked for"]


def test_honest_delegation_passes_and_is_shown():
    report = run(Without(), levels=(0,), only="level0/placement")
    assert report.passed
    assert report.computed["reference"] > 0 and report.computed["without"] == 0
    assert f"0 of {report.computed['reference']} nodes computed by without" in report.summary()


def test_the_json_report_holds_what_judging_it_needs(whole):
    facts = json.loads(json.dumps(whole.as_dict()))
    assert facts["passed"] is True and facts["backend"] == "reference"
    assert facts["cases"] == len(facts["results"]) == sum(facts["counts"].values())
    assert facts["case_list"] == list_hash(sorted(cases((0, 1)), key=lambda c: (c.level, c.stage)))
    assert {"kit", "contract", "device", "versions", "coverage", "computed_by"} <= set(facts)


def test_junit_tells_the_outcomes_apart():
    report = run(Without("Concat"), levels=(0,), only="as they are")
    suite = ElementTree.fromstring(junit(report))
    assert suite.attrib["tests"] == "3" and suite.attrib["failures"] == "1"
    (failed,) = [case for case in suite.findall("testcase") if case.find("failure") is not None]
    assert failed.attrib["classname"] == "level0.Concat"
    report.allow_declined = True
    suite = ElementTree.fromstring(junit(report))
    assert suite.attrib["failures"] == "0" and suite.attrib["skipped"] == "1"


def test_a_difference_is_reported_to_the_bit_and_replays(tmp_path):
    faulty = FaultyBackend("fused multiply-add in RMSNorm")
    report = run(faulty, levels=(0,), only="RMSNorm[width 576]", out=tmp_path)
    (result,) = report.results
    found = result.divergence
    assert (found.level, found.op, found.value) == (0, "RMSNorm", "y")
    assert found.ulps >= 1 and 0 < found.differing < found.compared
    stored = load(result.replay)
    at = (found.row, *found.element)
    bits = [np.asarray(a["y"][at]).view(np.uint32) for a in (stored.expected, stored.got)]
    assert [f"0x{int(b):08x}" for b in bits] == [found.expected_bits, found.got_bits]
    assert replay(result.replay, faulty).divergence == found
    assert replay(result.replay, ReferenceBackend()).outcome is CaseOutcome.SAME


def test_a_file_that_is_no_replay_is_refused(tmp_path):
    path = tmp_path / "broken.npz"
    path.write_bytes(b"PK\x03\x04 not a zip file")
    with pytest.raises(FormatError, match="no replay file"):
        load(path)
    with pytest.raises(FormatError, match="No such file"):
        load(tmp_path / "missing.npz")


@pytest.mark.parametrize("facts", ["{", "[]", "{}", '{"case": "a"}', None])
def test_a_replay_without_its_facts_is_refused(tmp_path, facts):
    path = tmp_path / "some.npz"
    np.savez(path, **({} if facts is None else {"facts": np.array(facts)}))
    with pytest.raises(FormatError, match="no replay file"):
        load(path)


@pytest.mark.parametrize("array", [np.zeros(3), np.array([{}], object)])
def test_an_array_is_no_replay_and_numpy_is_not_quoted(tmp_path, array):
    np.save(tmp_path / "some.npy", array)
    with pytest.raises(FormatError, match="no replay file") as caught:
        load(tmp_path / "some.npy")
    assert "pickle" not in str(caught.value)


def two_cases(levels, profile="quick", models=None):
    return (case for case in cases([0]) if case.id.startswith(SLICE))


@pytest.fixture
def golden_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    monkeypatch.setattr(rewrite_golden, "cases", two_cases)
    golden.read.cache_clear()
    yield tmp_path
    golden.read.cache_clear()


def test_golden_files_are_written_for_new_cases_and_never_changed_in_silence(golden_folder):
    assert rewrite_golden.rewrite([0]) == "level 0: 1 cases, 1 new"
    assert rewrite_golden.rewrite([0]) == "level 0: 1 cases, 0 new"
    path = golden.path_of(0)
    facts = json.loads(path.read_text())
    facts["cases"][SLICE]["digest"] = "0" * 32
    path.write_text(json.dumps(facts))
    golden.read.cache_clear()
    with pytest.raises(RequestError, match="CONTRACT_VERSION"):
        rewrite_golden.rewrite([0])
    assert json.loads(path.read_text()) == facts
    result = run(ReferenceBackend(), levels=(0,), only=SLICE).results[0]
    assert result.outcome is CaseOutcome.ERROR and "golden digest" in result.reason
    facts["contract"] = 0
    path.write_text(json.dumps(facts))
    golden.read.cache_clear()
    assert rewrite_golden.rewrite([0]) == "level 0: 1 cases, 1 new"


def command(monkeypatch, *arguments):
    import cortiq.plugins

    backend = ReferenceBackend()
    monkeypatch.setattr(cortiq.plugins, "find_backend", lambda spec=None: (backend, None))
    return CliRunner().invoke(conform, arguments)


def test_the_command_ends_with_the_summary(monkeypatch, tmp_path):
    reports = ["--json", str(tmp_path / "r.json"), "--junit", str(tmp_path / "r.xml")]
    result = command(monkeypatch, "--level", "0", "--only", "as they are", *reports)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1].endswith("passed")
    assert json.loads((tmp_path / "r.json").read_text())["cases"] == 3
    assert ElementTree.parse(tmp_path / "r.xml").getroot().attrib["tests"] == "3"


def test_the_command_exits_with_1_when_something_failed(monkeypatch):
    result = command(monkeypatch, "--level", "0", "--only", "no case is called this")
    assert result.exit_code == 1
    assert "FAILED (no case was asked for)" in result.output.splitlines()[-1]


def test_the_command_lists_without_running(monkeypatch):
    result = command(monkeypatch, "--list", "--level", "0", "--only", "as they are")
    assert result.output.splitlines()[0] == SLICE
    assert result.output.splitlines()[-1] == "3 cases"
