"""Block-sparse attention: the choice of blocks, and attention to their keys."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from chains import ONE_THREAD, REFERENCE, partial_by_name, same

from cortiq.backend import Named
from cortiq.ir import ops
from cortiq.ir.op import Type, TypeMismatchError
from cortiq.numerics.attention import ChosenBlocks, attend
from cortiq.numerics.ideal_mixers import attention_ideal, dequantise_ideal
from cortiq.numerics.key_blocks import choose_blocks
from cortiq.numerics.quantise import quantise_rows
from cortiq.placement.place import declined_nodes, place
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import advance
from cortiq_conformance.level0.blocks import CHOICES, CHOSEN, block_attention
from cortiq_conformance.oracle import OracleSequence
from cortiq_reference.ideal import evaluate

ROWS, HEADS, DIM = 90, 2, 8
POSITIONS = np.arange(ROWS)


def coded(*shape, seed):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return quantise_rows(values)


Q, KEYS = coded(ROWS, HEADS, DIM, seed=0), coded(ROWS, 1, DIM, seed=1)


@pytest.mark.parametrize(("block", "top", "local"), [(8, 3, 1), (7, 4, 2), (16, 16, 1)])
def test_the_choice_is_that_of_transformers(block, top, local):
    """Their indexer on the same queries and keys, in double; its norms and rotation left out."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLIndexer

    q, k = (torch.tensor(dequantise_ideal(x)).reshape(1, ROWS, -1) for x in (Q, KEYS))
    indexer = SimpleNamespace(
        head_dim=DIM, num_heads=HEADS, block_size=block, topk_blocks=top, local_blocks=local,
        q_proj=lambda x: q, k_proj=lambda x: k, q_norm=torch.nn.Identity(),
        k_norm=torch.nn.Identity(),
    )  # fmt: skip
    still = torch.ones(1, ROWS, DIM).double(), torch.zeros(1, ROWS, DIM).double()
    where = torch.tensor(POSITIONS)[None]
    found = MiniMaxM3VLIndexer.forward(indexer, torch.zeros(1, ROWS, 1), still, None, where)
    ours = choose_blocks(Q, KEYS, POSITIONS, block, top, local)
    for row, head in np.ndindex(ROWS, HEADS):
        theirs = sorted(i for i in found[0, head, row].tolist() if i >= 0)
        known = [i for i in ours[row, head].tolist() if i <= row // block]
        assert known == theirs


def test_lists_ascend_and_go_on_with_blocks_that_hold_nothing():
    chosen = choose_blocks(Q, KEYS, POSITIONS, 16, 4)
    assert (np.diff(chosen, axis=-1) > 0).all()
    assert chosen[5].tolist() == [[0, 1, 2, 3]] * HEADS
    assert chosen[40].tolist() == [[0, 1, 2, 3]] * HEADS
    assert (chosen[80] != [0, 1, 2, 3]).any()


def test_equal_scores_go_to_the_lower_block():
    flat = quantise_rows(np.ones((40, 1, DIM), np.float32))
    assert choose_blocks(flat, flat, np.array([39]), 4, 3)[0, 0].tolist() == [0, 1, 9]
    assert choose_blocks(flat, flat, np.array([39]), 4, 3, 0)[0, 0].tolist() == [0, 1, 2]


def test_attention_to_every_block_is_attention_and_hidden_keys_are_never_read():
    q, k, v = (coded(ROWS, n, DIM, seed=s) for n, s in ((4, 2), (2, 3), (2, 4)))
    plain = attend(q, k, v, POSITIONS, 0.3)
    every = np.broadcast_to(np.arange(12), (ROWS, 1, 12))
    assert (
        attend(q, k, v, POSITIONS, 0.3, blocks=ChosenBlocks(8, every)).tobytes() == plain.tobytes()
    )
    few = np.broadcast_to([3, 5], (ROWS, 1, 2))
    seen = attend(q, k, v, POSITIONS, 0.3, blocks=ChosenBlocks(8, few))
    hidden = ~np.isin(POSITIONS // 8, [3, 5])
    v.q[hidden], k.q[hidden] = 9999, -9999
    assert attend(q, k, v, POSITIONS, 0.3, blocks=ChosenBlocks(8, few)).tobytes() == seen.tobytes()
    assert not seen[:24].any()
    assert seen[24:].any(axis=-1).all()


def test_one_block_is_attention_over_that_block_alone():
    q, k, v = (coded(ROWS, 1, DIM, seed=s) for s in (2, 3, 4))
    chosen = np.full((ROWS, 1, 1), 2)
    ours = attend(q, k, v, POSITIONS, 0.3, blocks=ChosenBlocks(16, chosen))[60:]
    cut = slice(32, 48)
    alone, bound = attention_ideal(
        type(q)(q.q[60:], q.e[60:]), type(k)(k.q[cut], k.e[cut]), type(v)(v.q[cut], v.e[cut]),
        np.full(ROWS - 60, 15), 0.3,
    )  # fmt: skip
    assert (np.abs(ours - alone) <= bound).all()


@pytest.mark.parametrize("name", CHOICES)
def test_the_float64_twin_chooses_and_attends_alike(name):
    probe = block_attention(CHOICES[name])
    feed = probe.feed(CaseData(name), ROWS, 1.5)
    exact = evaluate(probe.program, {}, feed.tokens, ["y", CHOSEN], inputs=feed.inputs)
    ours = OracleSequence(probe.program, probe.weights).feed(feed.tokens, feed.inputs).values
    assert np.array_equal(ours[CHOSEN], exact[CHOSEN])
    np.testing.assert_allclose(ours["y"], exact["y"], atol=1e-3 * np.abs(exact["y"]).max())


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (ops.Attend(4, 2, 8, 8, 0.3, block=16), ()),
        (ops.Attend(4, 2, 8, 8, 0.3), (Type((2, 3), "i32"),)),
        (ops.Attend(4, 2, 8, 8, 0.3, block=16), (Type((3, 3), "i32"),)),
        (ops.Attend(4, 2, 8, 8, 0.3, block=16), (Type((2, 3)),)),
    ],
)
def test_geometries_that_do_not_fit_are_refused(op, inputs):
    with pytest.raises(TypeMismatchError):
        op.infer(Type((4, 8), "q16"), Type((), "i32"), *inputs)


def test_blocks_cross_a_cut_between_backends():
    """The choice on the fallback, attention on another: blocks are integers that rows supply."""
    probe = block_attention(CHOICES["4 of 16 keys, the last one among them"])
    feed = probe.feed(CaseData("cut"), ROWS)
    backend = partial_by_name(lambda node: node.slots.get("kv") != "index")
    chain = place(backend, probe.program, {}, ONE_THREAD, fallback=REFERENCE)
    assert set(declined_nodes(chain)) == {"store_index", CHOSEN}
    alone = REFERENCE.compile(probe.program, {}, ONE_THREAD)
    wants = (Named("y"), Named(CHOSEN))
    whole, cut = (advance(e, e.open(ROWS), feed, (0, ROWS), wants) for e in (alone, chain))
    assert same([dict(row) for row in whole], [dict(row) for row in cut])
