"""Attention on Triton that reads the chosen keys only, beside the reference, which has all keys."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

from cortiq.backend import Batch, CompileOptions, Named, Row
from cortiq.ir import Builder, ops
from cortiq_reference.backend import ReferenceBackend
from cortiq_triton import attend, chosen_attention
from cortiq_triton.backend import TritonBackend


def program(heads, groups, width, top, every, soft_cap=None, mass=False):
    """Return attention of rows to keys that an indexer of three heads chooses."""
    b = Builder(context=4096)
    b.input("token")
    position = b.input("position")

    def coded(name, rows, columns):
        given = b.input(name, (rows, columns), "f32")
        return b.add(ops.Quantise(), given, name=f"{name}.quantised")

    stored = coded("k", groups, width), coded("v", groups, width // 2)
    b.add_node(ops.StoreKV(groups, width, width // 2), *stored, name="st", slots={"kv": "kv"})
    slots = {"kv": "index"}
    b.add_node(ops.StoreKV(1, 16, 0), coded("index_k", 1, 16), name="index_store", slots=slots)
    weights = b.input("index_w", (3,), "f32")
    choice = ops.ChooseKeys(3, 16, top, every)
    chosen = b.add(choice, coded("index_q", 3, 16), position, weights, name="keys", slots=slots)
    op = ops.Attend(
        heads, groups, width, width // 2, width**-0.5, block=1, soft_cap=soft_cap, mass=mass
    )
    given = coded("q", heads, width), position, chosen
    node = b.add_node(op, *given, name="y", slots={"kv": "kv"})
    return b.program(tuple(value.name for value in node))


def answers(backend, graph, lengths, clustered, heavy=False):
    """Return what three sequences in one batch answer after prompts of these lengths.

    heavy : keys weigh alike, and values are near the largest of their row.
    """
    executable = backend.compile(graph, {}, CompileOptions())
    rng = np.random.default_rng(3)
    values = graph.trunk.values
    names = [n for n in graph.trunk.inputs if n not in ("token", "position")]
    states = [executable.open(max(lengths) + 4) for _ in lengths]

    def row(state, position, wants):
        given = {n: rng.standard_normal(values[n].shape, np.float32) for n in names}
        if clustered and position // 64 == clustered:  # keys of one tile are chosen before others
            given["index_k"][:] = 8.0
        given["index_w"] = np.abs(given["index_w"])
        if heavy:
            given["index_q"] = np.abs(given["index_q"])
            given["k"][:], given["v"] = 0.3, 1.0 - 0.05 * np.abs(np.sin(given["v"]))
        return Row(state, position, 0, wants, given)

    for state, length in zip(states, lengths, strict=True):
        for start in range(0, length, 128):
            stop = min(length, start + 128)
            rows = [row(state, at, ()) for at in range(start, stop)]
            executable.forward(Batch(rows)).result()
    wants = tuple(Named(name) for name in graph.trunk.outputs)
    last = [row(state, length, wants) for state, length in zip(states, lengths, strict=True)]
    found = executable.forward(Batch(last)).result().rows
    return [np.asarray(one[want]) for one in found for want in wants]


@pytest.mark.parametrize(
    ("heads", "groups", "width", "top", "every", "options", "clustered"),
    [
        (5, 1, 48, 40, 1, {}, 0),
        (8, 2, 32, 24, 1, {"soft_cap": 30.0}, 3),
        (20, 1, 320, 48, 1, {"mass": True}, 2),
        (4, 1, 32, 16, 4, {}, 0),
    ],
)
def test_chosen_keys_alone_give_the_bits_of_all_keys(
    heads, groups, width, top, every, options, clustered, monkeypatch
):
    """More than two runs of tiles; tiles with none, a few and more than `few` chosen keys."""
    used = []
    own = chosen_attention.attend_chosen
    monkeypatch.setattr(attend, "attend_chosen", lambda *given: (used.append(1), own(*given)))
    graph = program(heads, groups, width, top, every, **options)
    lengths = (3000, 700, 9)
    ours = answers(TritonBackend(), graph, lengths, clustered)
    expected = answers(ReferenceBackend(), graph, lengths, clustered)
    assert used
    for found, wanted in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))


def test_weights_whose_sums_no_float_holds_give_the_bits_of_all_keys():
    """Tens of keys of one tile with the same weight: sums of products go far beyond 2^24."""
    graph = program(5, 1, 48, 40, 1)
    ours = answers(TritonBackend(), graph, (400,), 2, heavy=True)
    expected = answers(ReferenceBackend(), graph, (400,), 2, heavy=True)
    np.testing.assert_array_equal(ours[0].view(np.int32), expected[0].view(np.int32))
