"""Neurons and tubes that each row chooses, and masks of CMF files."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cmf_files import cmf_bytes, masks_section
from masked import loaded_plugins

import cortiq
from cortiq.backend import Kernel
from cortiq.errors import GraphError, UnsupportedError
from cortiq.explain.observed import compiled_to_observe, value_rows
from cortiq.formats.cmf.writer import TrailingSections
from cortiq.ir import Builder
from cortiq.model.source import open_source
from cortiq.numerics.contract import F32
from cortiq.options import LoadOptions
from cortiq.plugins.loading import default_plugins
from cortiq_conformance.runner import run
from cortiq_masks.files import cmf_masks, write_mask
from cortiq_masks.mask import ActivationMask
from cortiq_masks.operators import KeepLargest, keep_largest_rows, keep_on_host
from cortiq_masks.routing import NeuronRouting
from cortiq_masks.sites import activation_values
from cortiq_masks.transformed import load_routed, load_sparse

NAME = "synthetic:tiny-llama?seed=1&format=w8"
PROMPT = [5, 9, 2, 71, 33, 8, 4, 19]
OPTIONS = {"context": 64}
EVERY = tuple(range(3))


@pytest.fixture(scope="module", autouse=True)
def plugin():
    with loaded_plugins(masks="cortiq_masks"):
        yield


def digests(model, adapter=None):
    made = model.generate(PROMPT, max_tokens=3, ignore_eos=True, temperature=0, adapter=adapter)
    return made.step_digests


def naive(op, row, source):
    """Return what stays of a row, group by group, with scores in float64."""
    edges = op.edges or tuple(range(op.width))
    groups = list(zip(edges, (*edges[1:], op.width), strict=True))
    scores = {g: float((source[a:b].astype(np.float64) ** 2).sum())
              for g, (a, b) in enumerate(groups) if g not in op.closed}  # fmt: skip
    least = sorted(scores.values(), reverse=True)[: op.keep][-1] if scores else 0.0
    out = np.zeros_like(row)
    out[: edges[0]] = row[: edges[0]]
    for g, (a, b) in enumerate(groups):
        if g in scores and scores[g] >= least:
            out[a:b] = row[a:b]
    return out


@pytest.mark.parametrize(
    "op",
    [
        KeepLargest(40, 7), KeepLargest(40, 60), KeepLargest(1, 1),
        KeepLargest(40, 2, (4, 10, 11, 30)), KeepLargest(40, 2, (0, 10, 20, 30), (1, 3)),
        KeepLargest(40, 1, (39,), (0,)),
    ],
)  # fmt: skip
def test_the_largest_groups_of_a_row_stay(op):
    random = np.random.default_rng(op.keep)
    rows, source = (random.normal(size=(9, op.width)).astype(F32) for _ in range(2))
    found = keep_largest_rows(SimpleNamespace(op=op), rows, source)
    for row, scores, got in zip(rows, source, found, strict=True):
        assert np.array_equal(got, naive(op, row, scores))
    alone = keep_largest_rows(SimpleNamespace(op=op), rows[3:4], source[3:4])
    assert alone.tobytes() == found[3:4].tobytes()


def test_of_equal_scores_all_stay():
    source = np.array([[2, 1, 2, 2, 0]], F32)
    found = keep_largest_rows(SimpleNamespace(op=KeepLargest(5, 2)), source + 1, -source)
    assert found.tolist() == [[3, 0, 3, 3, 0]]


@pytest.mark.parametrize(
    "op",
    [KeepLargest(8, 1, (3, 3)), KeepLargest(8, 1, (3, 8)), KeepLargest(8, 0),
     KeepLargest(8, 1, (3,), (1,))],
)  # fmt: skip
def test_groups_that_do_not_fit_a_row_are_refused(op):
    builder = Builder(context=8)
    row = builder.input("x", (8,), "f32")
    with pytest.raises(GraphError):
        builder.add(op, row, row, name="kept")


def test_the_kit_compares_backends_with_the_definition(monkeypatch):
    plugins = default_plugins()
    monkeypatch.setattr("cortiq_conformance.oracle.default_plugins", lambda: plugins)
    cpu, cases = plugins.backends["cpu"], "level0/KeepLargest["
    for name in ("reference", "cpu"):
        report = run(plugins.backends[name], levels=(0,), only=cases)
        assert report.passed and len(report.results) == 5
        assert set(report.computed) == {f"{name}/keep-largest"}
    smallest = cpu.host_kernel(lambda op, rows, source: keep_on_host(op, rows, 1 / (source + 9)))
    other = Kernel("cpu", KeepLargest, smallest, "smallest")
    monkeypatch.setattr(cpu, "given", {**cpu.given, KeepLargest: other})
    assert run(cpu, levels=(0,), only=cases).blamed() == {"KeepLargest"}


@pytest.mark.parametrize("score", ["gate", "oracle"])
@pytest.mark.parametrize("block", [1, 8])
def test_backends_agree_on_chosen_neurons(score, block):
    routing = NeuronRouting(30, score, block)
    with load_routed(NAME, routing, backend="cpu", **OPTIONS) as model:
        found, known = digests(model), model.generate(PROMPT, max_tokens=1).fingerprint
        assert {"cpu", "cpu/keep-largest"} == set(model.placement.values())
    with load_routed(NAME, routing, backend="reference", **OPTIONS) as model:
        assert digests(model) == found
    with cortiq.load(NAME, backend="cpu", **OPTIONS) as model:
        assert digests(model) != found
        assert model.generate(PROMPT, max_tokens=1).fingerprint != known


def test_as_many_as_there_are_changes_nothing():
    with cortiq.load(NAME, backend="reference", **OPTIONS) as model:
        want = digests(model)
    with load_routed(NAME, NeuronRouting(96), backend="reference", **OPTIONS) as model:
        assert digests(model) == want


def test_the_gate_chooses_in_the_first_layer_what_it_says():
    source = open_source(NAME, LoadOptions(context=64))
    (first, *_) = activation_values(source.program).values()
    names = [first, "layers.0.mlp.activation"]
    executable = compiled_to_observe(source, "reference")
    (held,) = value_rows(executable, PROMPT, names)
    want = keep_largest_rows(SimpleNamespace(op=KeepLargest(96, 11)), *(held[n] for n in names))
    assert (np.count_nonzero(want, axis=1) <= 11).all()
    executable.close()
    from cortiq_masks.transformed import routed_source

    executable = compiled_to_observe(routed_source(source, NeuronRouting(11)), "reference")
    (held,) = value_rows(executable, PROMPT, ["layers.0.mlp.kept"])
    assert held["layers.0.mlp.kept"].tobytes() == want.tobytes()
    executable.close()
    source.close()


def test_tubes_all_open_are_the_model_and_closed_ones_the_mask(tmp_path):
    tubes = dict.fromkeys(EVERY, (32, 48, 80))
    with cortiq.load(NAME, backend="reference", **OPTIONS) as model:
        dense = digests(model)
    with load_routed(NAME, NeuronRouting(3, tubes=tubes), backend="reference", **OPTIONS) as model:
        assert digests(model) == dense
    closed = np.ones(96, F32)
    closed[48:80] = 0
    write_mask(tmp_path / "t.mask", ActivationMask("t", dict.fromkeys(EVERY, closed)))
    with load_sparse(NAME, tmp_path / "t.mask", backend="reference", **OPTIONS) as model:
        masked = digests(model)
    shut = NeuronRouting(2, tubes=tubes, closed=dict.fromkeys(EVERY, (1,)))
    with load_routed(NAME, shut, backend="reference", **OPTIONS) as model:
        assert digests(model) == masked != dense
    one = NeuronRouting(1, tubes=tubes, closed=dict.fromkeys(EVERY, (1,)))
    with load_routed(NAME, one, backend="reference", **OPTIONS) as model:
        assert digests(model) not in (masked, dense)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        (NAME, {"keep": 0}, "takes keep ≥ 1"), (NAME, {"keep": 1, "score": "x"}, "takes keep ≥ 1"),
        ("synthetic:mini-mamba2", {"keep": 3}, "no feed-forward parts"),
    ],
)  # fmt: skip
def test_choices_that_cannot_be_made_are_refused(name, options, says):
    with pytest.raises(UnsupportedError, match=says):
        load_routed(name, NeuronRouting(**options), backend="reference")


def test_masks_of_a_cmf_file(tmp_path):
    path = tmp_path / "m.cmf"
    path.write_bytes(cmf_bytes(sections=TrailingSections(b'{"version": "1.0"}', masks_section())))
    found = cmf_masks(path)["task"]
    assert found.neurons[0].tolist()[:8] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert found.neurons[0].sum() == len(found.neurons[0]) - 1
    assert not found.heads and not found.closed
