"""Experts that a mask admits, and tubes of experts' busiest neurons."""

from __future__ import annotations

import numpy as np
import pytest
from masked import loaded_plugins

import cortiq
from cortiq.errors import RequestError, UnsupportedError
from cortiq.explain.observed import compiled_to_observe, value_rows
from cortiq.model.source import open_source
from cortiq.options import LoadOptions
from cortiq_masks.experts import (
    busiest,
    expert_nodes,
    expert_statistics,
    experts_that_cover,
    with_expert_tubes,
)
from cortiq_masks.transformed import load_admitting, load_expert_tubes

NAME = "synthetic:tiny-mixtral?seed=2&format="
PROMPT = [5, 9, 2, 71, 33, 8, 4, 19]
OPTIONS = {"context": 64}


@pytest.fixture(scope="module", autouse=True)
def plugin():
    with loaded_plugins(masks="cortiq_masks"):
        yield


@pytest.fixture(scope="module")
def source():
    return open_source(NAME + "w16", LoadOptions(context=64))


@pytest.fixture(scope="module")
def statistics(source):
    return expert_statistics(source, PROMPT, backend="cpu")


def digests(model):
    made = model.generate(PROMPT, max_tokens=3, ignore_eos=True, temperature=0)
    return made.step_digests


def test_statistics_are_those_of_the_router(source, statistics):
    again = expert_statistics(source, PROMPT, window=3, backend="reference")
    executable = compiled_to_observe(source, "reference")
    node, op = expert_nodes(source.program)[0], expert_nodes(source.program)[0].op
    names = [f"{node.name}.{end}" for end in ("route.0", "route.1", "product")]
    counts, energy = np.zeros(op.experts), np.zeros((op.experts, op.inner))
    for held in value_rows(executable, PROMPT, names, 100):
        for index, weight, rows in zip(*(held[n] for n in names), strict=True):
            for e, w, row in zip(index, weight, rows, strict=True):
                counts[e] += 1
                energy[e] += (float(w) * row.astype(np.float64)) ** 2
    executable.close()
    assert np.array_equal(statistics.counts[0], counts) and counts.sum() == 2 * len(PROMPT)
    assert np.allclose(statistics.energy[0], energy, rtol=1e-12)
    assert all(c.sum() == 2 * len(PROMPT) for c in again.counts.values())
    with pytest.raises(RequestError, match="no routed experts"):
        expert_statistics(open_source("synthetic:tiny-llama", LoadOptions()), PROMPT)


def test_the_fewest_experts_that_cover_a_share_are_kept():
    counts = np.array([5.0, 1.0, 5.0, 9.0])
    assert experts_that_cover(counts, 0.45).tolist() == [False, False, False, True]
    assert experts_that_cover(counts, 0.5).tolist() == [True, False, False, True]
    assert experts_that_cover(counts, 1.0).all()
    with pytest.raises(RequestError, match="a share"):
        experts_that_cover(counts, 0.0)


def test_only_admitted_experts_are_chosen(statistics):
    every = {i: np.ones(4, bool) for i in statistics.counts}
    some = {0: np.array([True, False, True, True]), 1: np.array([False, True, True, False])}
    with cortiq.load(NAME + "w16", backend="cpu", **OPTIONS) as model:
        dense = digests(model)
    with load_admitting(NAME + "w16", every, backend="cpu", **OPTIONS) as model:
        assert digests(model) == dense
    found = set()
    for backend in ("cpu", "reference"):
        with load_admitting(NAME + "w16", some, backend=backend, **OPTIONS) as model:
            found.add(digests(model))
    assert len(found) == 1 and dense not in found
    with load_admitting(NAME + "w16", some, backend="reference", **OPTIONS) as model:
        chosen = expert_statistics(model._source, PROMPT)
        assert all((chosen.counts[i][~flags] == 0).all() for i, flags in some.items())
    with pytest.raises(UnsupportedError, match="the router takes 2"):
        load_admitting(NAME + "w16", {0: np.array([True, False, False, False])}, **OPTIONS)


def test_tubes_in_one_format_are_the_experts_and_better_ones_lose_less(source, statistics):
    tubes = {layer: busiest(energy, 24) for layer, energy in statistics.energy.items()}
    for layer, numbers in tubes.items():
        energy = statistics.energy[layer]
        for e, own in enumerate(numbers):
            assert energy[e][own].min() >= np.delete(energy[e], own).max()
    wanted = outputs(source.program, source.weights)
    errors = {}
    for rest, better in (("w16", "w16"), ("w4", "w4"), ("w4", "w16")):
        got = outputs(*with_expert_tubes(source, tubes, rest, better))
        errors[rest, better] = np.abs(got - wanted).max() / np.abs(wanted).max()
    assert errors["w16", "w16"] < 1e-3
    assert errors["w4", "w16"] < errors["w4", "w4"]
    found = set()
    for backend in ("cpu", "reference"):
        given = {"rest": "w4", "better": "w8", "backend": backend, **OPTIONS}
        with load_expert_tubes(NAME + "w16", tubes, **given) as model:
            found.add(digests(model))
    assert len(found) == 1


def outputs(program, weights):
    """Return the output of the first layer's experts, of some rows."""
    changed = open_source(NAME + "w16", LoadOptions(context=64))
    changed.program, changed.weights = program, weights
    executable = compiled_to_observe(changed, "reference")
    name = expert_nodes(open_source(NAME + "w16", LoadOptions()).program)[0].outputs[0]
    rows = np.concatenate([held[name] for held in value_rows(executable, PROMPT, [name])])
    executable.close()
    return rows
