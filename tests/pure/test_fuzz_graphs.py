"""The fuzzer of graphs: a few rounds of it, and that it finds what is wrong."""

from __future__ import annotations

import pytest
from fuzz import graphs
from installed import backends

from cortiq_conformance.faults import FaultyBackend


def test_random_programs_have_one_answer_on_every_backend():
    names = [name for name in backends() if name in ("cpu", "torch")]
    assert graphs.main(["--count", "3", "--backends", *names]) == 0


def test_a_planted_fault_is_found_and_its_round_is_named(monkeypatch):
    compiled = graphs.compiled

    def faulty(name, bound, page_rows):
        if name == "cpu":
            options = graphs.CompileOptions(threads=1)
            return FaultyBackend("reordered canonical_sum").compile(
                bound.program, bound.weights, options
            )
        return compiled(name, bound, page_rows)

    monkeypatch.setattr(graphs, "compiled", faulty)
    with pytest.raises(AssertionError) as found:
        graphs.main(["--count", "12", "--backends", "cpu"])
    assert "--first" in found.value.__notes__[-1]
