"""`cortiq bisect`: the first node on which two backends differ."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from cortiq.ir import layers
from cortiq_conformance import models
from cortiq_conformance.bisect import bisect, ids_of
from cortiq_conformance.cli import bisect as command
from cortiq_conformance.faults import FaultyBackend
from cortiq_reference.backend import ReferenceBackend

MODEL = "tiny-gemma3"
IDS = ids_of(MODEL, None, 70)


@pytest.mark.parametrize(
    ("fault", "op"),
    [
        ("reordered canonical_sum", "RMSNorm"),
        ("half-away rounding in the quantiser", "Quantise"),
        ("window off by one", "Attend"),
        ("all zero", "Activation"),
    ],
)
def test_the_first_node_is_named(fault, op):
    found = bisect(MODEL, FaultyBackend(fault), ReferenceBackend(), IDS)
    assert found.op == op
    assert found.divergence.op == op
    names = [node.name for node in models.load(MODEL).program.trunk.nodes]
    assert any(f"{found.node}.".startswith(f"{name}.") for name in names)
    assert "every value before it is the same on both" in found.sentence()


def test_equal_backends_are_said_to_be_equal():
    found = bisect(MODEL, ReferenceBackend(), ReferenceBackend(), IDS, chunk=7)
    assert found.divergence is None
    assert "the same bits after every layer, in all of 70 rows" in found.sentence()
    assert found.as_dict()["same"] is True


class WholeLayer(ReferenceBackend):
    """Right in every primitive, wrong in the gated MLP as a whole."""

    name = "whole"

    def compile(self, program, weights, options):
        executable = super().compile(program, weights, options)
        nodes = [node for graph in program.graphs.values() for node in graph.nodes]
        wrong = {n.outputs[0] for n in nodes if isinstance(n.op, layers.GatedMLP)}
        for plan in executable.plans.values():
            for at, step in enumerate(plan.steps):
                if step.node.outputs and step.node.outputs[0] in wrong:
                    object.__setattr__(plan.steps[at], "kernel", off_by_one_ulp(step.kernel))
        return executable


def off_by_one_ulp(kernel):
    def wrong(call, *inputs):
        right = kernel(call, *inputs)
        return np.nextafter(right, np.float32(np.inf))

    return wrong


def test_a_layer_that_is_wrong_only_as_a_whole_is_told_apart():
    found = bisect(MODEL, WholeLayer(), ReferenceBackend(), IDS)
    assert found.whole and found.op == "GatedMLP"
    assert "the layer as a whole is wrong" in found.sentence()


def test_the_command_prints_json_and_exits_with_1(monkeypatch):
    import cortiq_conformance.bisect as module

    chosen = {"faulty": FaultyBackend("all zero"), "reference": ReferenceBackend()}
    monkeypatch.setattr(module, "make_subject", lambda n, f=module.make_subject: f(chosen[n]))
    arguments = ["synthetic:tiny-llama", "-b", "faulty", "--tokens", "9", "-p", "to be or not"]
    done = CliRunner().invoke(command, [*arguments, "--json"])
    assert done.exit_code == 1, done.output
    facts = json.loads(done.output)
    assert (facts["op"], facts["rows"], facts["same"]) == ("Activation", 9, False)
    assert facts["divergence"]["got"] == "0"
