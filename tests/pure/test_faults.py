"""The harness is tested too: every planted fault is found, by its own family, and named."""

from __future__ import annotations

import pytest

from cortiq.errors import RequestError
from cortiq_conformance.faults import FAULTS, FaultyBackend
from cortiq_conformance.faults.table import DECLINES, DELEGATES
from cortiq_conformance.report import Outcome
from cortiq_conformance.runner import run
from cortiq_conformance.source import Source

COMPUTING = [fault for fault in FAULTS if fault not in (DECLINES, DELEGATES)]


def blamed_results(report):
    return [r for r in report.results if r.divergence and r.case.family in report.blamed()]


@pytest.mark.parametrize("fault", COMPUTING)
def test_a_fault_is_found_by_its_own_family_only_and_named(fault):
    report = run(FaultyBackend(fault), levels=(0,), stop_early=True)
    assert not report.passed
    assert report.blamed() == {FAULTS[fault].family}
    assert {result.divergence.op for result in blamed_results(report)} == {FAULTS[fault].op}
    assert report.count(Outcome.ERROR) == 0


@pytest.mark.parametrize(
    ("fault", "remark"),
    [("all NaN", "every value of the backend is NaN"), ("all zero", "is zero")],
)
def test_a_dead_output_is_described_as_such(fault, remark):
    report = run(FaultyBackend(fault), levels=(0,), only=FAULTS[fault].family)
    assert any(remark in result.reason for result in blamed_results(report))


def test_the_operands_of_the_first_wrong_element_are_shown():
    report = run(FaultyBackend("output never written"), levels=(0,), only="Bias[width")
    (result,) = report.results
    found = result.divergence
    case = result.case.build(Source(result.case.id))
    x = case.feeds[0].inputs["x"][(found.row, *found.element)]
    assert f"there x = {float(x):.9g} (0x" in result.reason and ", bias = " in result.reason


def test_declining_everything_computes_nothing_and_fails_whatever_is_allowed():
    report = run(FaultyBackend(DECLINES), levels=(0, 1), allow_declined=True)
    assert report.count(Outcome.SAME) == 0
    assert report.count(Outcome.DECLINED) == len(report.results)
    assert list(report.failures())[:2] == [
        "level 0: nothing was computed and found the same",
        "level 1: nothing was computed and found the same",
    ]


def test_delegating_behind_the_back_is_found_for_every_primitive():
    report = run(FaultyBackend(DELEGATES), levels=(0,), only="level0/placement")
    assert {result.outcome for result in report.results} == {Outcome.DIFFERENT}
    assert report.blamed() == {"placement"}
    values = run(FaultyBackend(DELEGATES), levels=(0,), only="level0/Add")
    assert values.passed


@pytest.mark.parametrize(
    ("fault", "level", "only", "op"),
    [
        ("reordered canonical_sum", 1, "level1/Attention[", "RMSNorm"),
        ("window off by one", 2, "tiny-gemma3, 70 tokens, whole", "Attend"),
        ("planes swapped", 2, "tiny-llama, 70 tokens, whole", "MatMul"),
        ("reordered canonical_sum", 3, "stream[tiny-lfm2", "RMSNorm"),
    ],
)
def test_inside_layers_graphs_and_streams_the_first_wrong_operator_is_named(fault, level, only, op):
    report = run(FaultyBackend(fault), levels=(level,), only=only)
    named = {result.divergence.op for result in report.results if result.divergence}
    assert named == {op}


@pytest.mark.parametrize(
    ("fault", "only", "family"),
    [
        ("a stale row after rewind", "tiny-llama, 3 prompts, with rewinds", "rewind"),
        ("a row that sees its batch neighbour", "tiny-llama, 3 prompts, in one batch", "batch"),
    ],
)
def test_in_streams_a_fault_of_scheduling_is_told_from_one_of_arithmetic(fault, only, family):
    report = run(FaultyBackend(fault), levels=(3,), only=only)
    assert report.blamed() == {family}
    (result,) = report.results
    assert "the schedule is at fault" in result.reason


def test_an_unknown_fault_is_refused_with_the_list():
    with pytest.raises(RequestError, match="window off by one"):
        FaultyBackend("no such fault")
