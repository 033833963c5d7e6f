"""Graphs that apply a layer twice, with one set of weights; and drafts on recurrent trunks."""

from __future__ import annotations

import pytest
from engines import backends

from cortiq_conformance import models
from cortiq_conformance.loops import AGAIN, LOOPED, looped
from cortiq_conformance.report import CaseOutcome
from cortiq_conformance.runner import run

DRIVES = 3
"""A prompt whole, in chunks, and row by row."""


@pytest.mark.parametrize("name", LOOPED)
def test_a_loop_has_every_layer_twice_with_the_same_weights_and_other_slots(name):
    plain = models.load(name).program
    program = looped(plain)
    layers = [node for node in plain.trunk.nodes if node.name.startswith("layers.")]
    nodes = {node.name: node for node in program.trunk.nodes}
    assert len(program.trunk.nodes) == len(plain.trunk.nodes) + len(layers)
    for node in layers:
        again = nodes[AGAIN + node.name]
        assert again.op == node.op and again.weights == nodes[node.name].weights == node.weights
        assert not set(again.slots.values()) & set(node.slots.values())
    assert set(program.weights) == set(plain.weights)
    assert len(program.slots) == 2 * len(plain.slots)
    assert nodes[AGAIN + layers[0].name].inputs[0] == layers[-1].outputs[0]


@pytest.mark.parametrize("backend", backends())
def test_a_loop_in_chunks_is_the_loop_row_by_row(backend):
    report = run(backends()[backend](), levels=(2,), only="loop[")
    assert list(report.failures()) == []
    assert report.count(CaseOutcome.SAME) == len(report.results) == DRIVES * len(LOOPED)
    digests = [result.digest for result in report.results]
    assert len(set(digests)) == len(LOOPED)
    for start in range(0, len(digests), DRIVES):
        assert len(set(digests[start : start + DRIVES])) == 1


@pytest.mark.parametrize(
    "name",
    [
        "mini-qwen3_5_text+mtp",
        pytest.param("mini-granitemoehybrid+mtp", marks=pytest.mark.slow),
    ],
)
def test_drafts_on_recurrent_trunks_change_nothing(name):
    kind = backends().get("cpu") or backends()["reference"]
    report = run(kind(), levels=(2, 3, 4), models=[name])
    assert list(report.failures()) == []
    assert {result.case.level for result in report.results} == {2, 3, 4}
    assert report.count(CaseOutcome.SAME) == len(report.results) == 7
    assert all(result.golden for result in report.results)
