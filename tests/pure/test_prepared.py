"""Weights that are made ahead, several at once."""

from __future__ import annotations

import threading

import pytest
from engines import loaded

from cortiq.backend.plan import Prepared
from cortiq.ir import expand


def nodes_of(program):
    layouts = {weight: spec.layout for weight, spec in program.weights.items()}
    graphs = (expand(graph, layouts, lambda node: False) for graph in program.graphs.values())
    return [node for graph in graphs for node in graph.nodes]


def test_weights_made_ahead_are_those_that_nodes_take_and_each_is_made_once():
    model, made = loaded("tiny-llama"), []
    threads = threading.Barrier(2, timeout=20)

    def prepare(op, role, weight, name):
        if len(made) < 2:
            made.append(name)
            threads.wait()  # two at once, or nobody goes on
        else:
            made.append(name)
        return name, weight.shape

    prepared = Prepared(model.weights, prepare, lambda op, role: "")
    nodes = nodes_of(model.program)
    prepared.make_ahead(nodes, 3)
    ahead = dict(prepared.made)
    found = [prepared.of(node) for node in nodes]
    assert len(made) == len(set(made)) and prepared.made == ahead
    assert {name for weights in found for name, _ in weights.values()} == set(model.weights)


def test_the_first_error_ends_it():
    model, made = loaded("tiny-llama"), []

    def prepare(op, role, weight, name):
        made.append(name)
        raise ValueError(f"{name} is not finite")

    prepared = Prepared(model.weights, prepare, lambda op, role: "")
    with pytest.raises(ValueError, match="is not finite"):
        prepared.make_ahead(nodes_of(model.program), 1)
    assert len(made) < len(model.weights) and not prepared.made
