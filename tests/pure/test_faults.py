"""The harness is tested too: every planted fault is found, by its own family, and named."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from cortiq.errors import RequestError
from cortiq.ir import primitives_of
from cortiq_conformance import catalogue
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.catalogue import cases
from cortiq_conformance.faults import FAULTS, FaultyBackend
from cortiq_conformance.faults.ordered import PRODUCTS
from cortiq_conformance.faults.table import ANSWERS, DECLINES, DELEGATES, STATES, WRONG
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.runner import run
from cortiq_conformance.summation_orders import ORDERS, terms_meeting

COMPUTING = [fault for fault in FAULTS if fault not in (DECLINES, DELEGATES)]
ORDERED = [fault for fault in FAULTS if FAULTS[fault].order]


def blamed_results(report):
    return [r for r in report.results if r.divergence and r.case.family in report.blamed()]


@pytest.fixture(scope="module")
def listed():
    """Level 0 by id, its cases built once: many faults are held against what they expect."""
    built = {case: case.build(CaseData(case.id)) for case in cases((0,))}
    return {
        case.id: (replace(case, build=lambda _, check=check: check), check)
        for case, check in built.items()
    }


def program_of(check):
    """The program of a check, what it asks for, and the positions of its rows."""
    check = getattr(check, "scenario", check)
    program = check.program if hasattr(check, "program") else check.probe.program
    feeds = check.feeds if hasattr(check, "feeds") else [check.feed]
    feeds = [*feeds, *getattr(check, "sounds", ())]  # keys of an encoder are terms, too
    start = feeds[0].start
    rows = range(start, start + max(map(len, feeds)))
    return program, getattr(check, "wants", ()), rows


def touched(fault):
    """Operators and wants that the fault makes wrong: all that keep state where it is a state's."""
    if fault in STATES:
        return {"StoreKV", "CausalConv", "Compress", "DeltaRule", "StateSpace", "Draw"}
    return {kind.__name__ for kind in (*WRONG.get(fault, {}), *ANSWERS.get(fault, {}))}


def sees(check, kinds):
    """Whether a case can see a fault of these: elsewhere the backend is the reference."""
    program, wants, _ = program_of(check)
    nodes = {n.op.kind for g in primitives_of(program).graphs.values() for n in g.nodes}
    return bool(kinds & (nodes | {type(want).__name__ for want in wants}))


def terms(check, fault):
    """Return the most terms that meet in the order that the fault changes."""
    order, kinds = FAULTS[fault].order, touched(fault)
    met = terms_meeting(order, *program_of(check))
    counts = [max(found, default=0) for (kind, _), found in met.items() if kind in kinds]
    return max(counts, default=0)


def rows_of(check):
    return len(program_of(check)[2])


def run_with(monkeypatch, fault, chosen, **options):
    monkeypatch.setattr(catalogue, "LEVEL0", (SimpleNamespace(cases=lambda: iter(chosen)),))
    return run(FaultyBackend(fault), levels=(0,), **options)


@pytest.mark.parametrize("fault", COMPUTING)
def test_a_fault_is_found_where_the_table_says_and_nowhere_before(fault, listed, monkeypatch):
    """Of other families every tenth case, no product of many rows: the slow test below runs all."""
    known = FAULTS[fault]
    seen = [
        case
        for case, check in listed.values()
        if sees(check, touched(fault)) and not (case.family in PRODUCTS and rows_of(check) > 100)
    ]
    chosen = [c for at, c in enumerate(seen) if c.family in known.families or at % 10 == 0]
    report = run_with(monkeypatch, fault, chosen, stop_early=True)
    failed = report.failed_results()
    assert report.blamed() == set(known.families)
    assert {result.case.stage for result in failed} == {known.stage}
    assert {result.divergence.op for result in blamed_results(report)} == {known.op, *known.also}
    assert report.count(CaseOutcome.ERROR) == 0
    if known.order:  # not by luck: a bit differs only where enough terms meet
        assert min(terms(listed[r.case.id][1], fault) for r in failed) >= known.fewest


@pytest.mark.slow
@pytest.mark.parametrize("fault", ORDERED)
def test_an_order_cannot_be_seen_where_fewer_terms_meet(fault, listed, monkeypatch):
    known, kinds = FAULTS[fault], touched(fault)
    few = [
        case
        for case, check in listed.values()
        if sees(check, kinds) and terms(check, fault) < known.fewest
    ]
    assert list(run_with(monkeypatch, fault, few).failed_results()) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", COMPUTING)
def test_a_fault_is_found_in_the_whole_of_level_0(fault):
    report = run(FaultyBackend(fault), levels=(0,), stop_early=True)
    assert report.blamed() == set(FAULTS[fault].families)
    assert {result.case.stage for result in report.failed_results()} == {FAULTS[fault].stage}


def test_three_and_four_terms_of_every_order_meet_in_level_0(listed):
    met = {}
    for _, check in listed.values():
        for order in ORDERS:
            for (kind, layout), counts in terms_meeting(order, *program_of(check)).items():
                met.setdefault((order, kind, layout), set()).update(counts)
    adding = {name: counts for name, counts in met.items() if max(counts, default=0) > 1}
    assert [name for name, counts in adding.items() if not {3, 4} <= counts] == []
    assert {order for order, _, _ in adding} == set(ORDERS)
    assert {(o, k) for o, k, _ in adding} == {(o, k) for o in ORDERS for k in ORDERS[o]}


def test_every_order_has_a_fault_from_the_last_and_one_in_pairs():
    planted = {(fault.order, fault.op, fault.fewest) for fault in FAULTS.values() if fault.order}
    wanted = {(o, k, fewest) for o in ORDERS for k in ORDERS[o] for fewest in (3, 4)}
    alone = ("lanes of a sum", "HeadMatMul"), ("lanes of a sum", "ExpertMatMul")
    assert {w for w in wanted - planted if w[:2] not in alone} == {
        ("runs of tiles and the sink", "Attend", 4)  # a sink has one wrong place
    }


def test_there_are_sixty_faults_at_least():
    assert len(FAULTS) >= 60


@pytest.mark.parametrize(
    ("fault", "remark"),
    [("all NaN", "every value of the backend is NaN"), ("all zero", "is zero")],
)
def test_a_dead_output_is_described_as_such(fault, remark):
    report = run(FaultyBackend(fault), levels=(0,), only=FAULTS[fault].families[0])
    assert any(remark in result.reason for result in blamed_results(report))


def test_the_operands_of_the_first_wrong_element_are_shown():
    report = run(FaultyBackend("output never written"), levels=(0,), only="Bias[width")
    (result,) = report.results
    found = result.divergence
    case = result.case.build(CaseData(result.case.id))
    x = case.feeds[0].inputs["x"][(found.row, *found.element)]
    assert f"there x = {float(x):.9g} (0x" in result.reason and ", bias = " in result.reason


def test_declining_everything_computes_nothing_and_fails_whatever_is_allowed():
    report = run(FaultyBackend(DECLINES), levels=(0, 1), allow_declined=True)
    assert report.count(CaseOutcome.SAME) == 0
    assert report.count(CaseOutcome.DECLINED) == len(report.results)
    assert list(report.failures())[:2] == [
        "level 0: nothing was computed and found the same",
        "level 1: nothing was computed and found the same",
    ]


def test_delegating_behind_the_back_is_found_for_every_primitive():
    report = run(FaultyBackend(DELEGATES), levels=(0,), only="level0/placement")
    assert {result.outcome for result in report.results} == {CaseOutcome.DIFFERENT}
    assert report.blamed() == {"placement"}
    values = run(FaultyBackend(DELEGATES), levels=(0,), only="level0/Add")
    assert values.passed


@pytest.mark.parametrize(
    ("fault", "level", "only", "op"),
    [
        ("weight times root first", 1, "level1/Attention[", "RMSNorm"),
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
