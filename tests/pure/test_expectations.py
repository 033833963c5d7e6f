"""conformance.toml: reasoned, strict, named by whole ids; and declines as named requirements."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from cortiq.backend import Declined, Supported
from cortiq.errors import FormatError
from cortiq.ir import ops
from cortiq_conformance.expectations import read
from cortiq_conformance.faults import FaultyBackend
from cortiq_conformance.junit import junit
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.requirements import sentence
from cortiq_conformance.runner import run
from cortiq_reference.backend import ReferenceBackend

ENTRY = '[[expect_different]]\ncase = {case!r}\nreason = "bug 1"\n'


class Picky(ReferenceBackend):
    """Declines Q3_K by its requirement, and Concat without saying which."""

    name = "picky"
    word = "weights.q3_k"

    def supports(self, node, graph, program):
        layouts = [program.weights[name].layout for name in node.weights.values()]
        if "Q3_K" in layouts and isinstance(node.op, ops.MatMul):
            return Declined("Q3_K is not repacked yet", self.word)
        if isinstance(node.op, ops.Concat):
            return Declined("no Concat yet")
        return Supported()


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "conformance.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def differing():
    """A fault, and the ids of the cases that find it."""
    report = run(FaultyBackend("planes swapped"), levels=(0,), only="level0/MatMul[w")
    return [r.case.id for r in report.results if r.outcome is CaseOutcome.DIFFERENT]


def rerun(path, fault="planes swapped"):
    return run(FaultyBackend(fault), levels=(0,), only="level0/MatMul[w", expectations=path)


def test_an_expected_difference_does_not_fail_and_is_counted(written, differing):
    path = written("".join(ENTRY.format(case=case) for case in differing))
    report = rerun(path)
    assert report.passed and report.count(CaseOutcome.DIFFERENT) == len(differing) > 0
    assert f"{len(differing)} of them expected" in report.summary()
    assert json.loads(json.dumps(report.as_dict()))["excused"] == len(differing)


def test_in_junit_an_expected_failure_is_skipped_with_its_reason(written, differing):
    report = rerun(written("".join(ENTRY.format(case=case) for case in differing)))
    suite = ElementTree.fromstring(junit(report))
    assert suite.attrib["failures"] == "0" and suite.attrib["skipped"] == str(len(differing))
    messages = [skipped.attrib["message"] for skipped in suite.iter("skipped")]
    assert all(message.endswith("(expected: bug 1)") for message in messages)


def test_one_that_is_not_listed_still_fails(written, differing):
    assert len(differing) > 1
    report = rerun(written(ENTRY.format(case=differing[0])))
    assert list(report.failures()) == [f"{len(differing) - 1} cases: different"]


def test_a_healed_case_fails_until_its_lines_are_removed(written, differing):
    path = written(ENTRY.format(case=differing[0]))
    report = run(ReferenceBackend(), levels=(0,), only="level0/MatMul[w", expectations=path)
    (healed,) = [r for r in report.results if r.outcome is CaseOutcome.ERROR]
    assert not report.passed and healed.case.id == differing[0]
    assert "remove its entry" in healed.reason


def test_another_failure_than_the_expected_one_is_not_excused(written, differing):
    entry = ENTRY.format(case=differing[0]).replace("different", "declined")
    report = rerun(written(entry))
    assert not report.passed and report.excused == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[expect_different]]\ncase = 'level0/Add'\nreason = 'x'", "names no case of this kit"),
        (ENTRY.format(case="{case}").replace('"bug 1"', '" "'), "has no reason"),
        ("[[expect_different]]\nreason = 'x'", "has no case"),
        (ENTRY.format(case="{case}") * 2, "names a case twice"),
        ("[[expected]]\ncase = 'x'", "unknown table 'expected'"),
        ("expect_different = 3", "is written"),
        (ENTRY.format(case="{case}") + "regex = true", "unknown key 'regex'"),
        (ENTRY.format(case="{case}") + "until = 'soon'", "until = 'soon'"),
        (ENTRY.format(case="{case}") + "until = 'contract 1'", "expired with contract 1"),
        ("[[", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(written, differing, text, message):
    with pytest.raises(FormatError, match=message):
        read(written(text.replace("{case}", differing[0])))


def test_a_decline_is_a_named_requirement(written):
    report = run(Picky(), levels=(0,), only="level0/MatMul[", allow_declined=True)
    rows = {row["name"]: row for row in report.requirement_rows()}
    assert rows["weights.q3_k"]["counts"] == {"declined": 6}
    assert rows["weights.q3_k"]["declined"] == "Q3_K is not repacked yet"
    assert rows["weights.q4_k"]["counts"] == {"same": 6}
    assert "ops.Concat" not in rows
    plain = run(Picky(), levels=(0,), only="level0/Concat", allow_declined=True)
    assert plain.declined == {"ops.Concat": "no Concat yet"}


def test_a_requirement_that_the_node_does_not_have_is_an_error(monkeypatch):
    monkeypatch.setattr(Picky, "word", "weigths.q3_k")
    report = run(Picky(), levels=(0,), only="level0/MatMul[Q3_K", allow_declined=True)
    assert {r.outcome for r in report.results} == {CaseOutcome.ERROR}
    assert "It requires ops.MatMul, weights.q3_k" in report.results[0].reason


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("level0/Attend sinks", {"ops.Attend", "ops.StoreKV", "attention.sinks", "state.kv_rows"}),
        ("level0/Attend window", {"attention.window"}),
        ("level0/CausalConv", {"ops.CausalConv", "state.ring"}),
        ("level0/Activation[silu", {"activations.silu"}),
        ("level0/Route[sigmoid", {"routers.sigmoid"}),
    ],
)
def test_a_case_says_what_it_requires(only, names):
    rows = run(ReferenceBackend(), levels=(0,), only=only).requirement_rows()
    assert names <= {row["name"] for row in rows}
    assert all(row["sentence"] for row in rows)


def test_every_operator_has_a_sentence():
    assert all(len(sentence(f"ops.{op.__name__}")) > len("Concat") for op in ops.PRIMITIVES)
