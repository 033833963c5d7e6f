"""Fixture models: per-layer geometry (T36), hybrid and expert models, and a second entry graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import examples, random_ids
from hypothesis import given
from hypothesis import strategies as st
from sequences import WANTS, alive, alone, completed, feed, forward, in_chunks, same
from walk import Walk, calls

from cortiq.backend import Argmax, CompileOptions, Digest, Drawn, Executable, Named, Row, Status
from cortiq.ir import Program, primitives_of
from cortiq.ir.layers import Attention
from cortiq.ir.ops import Rope
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics import ideal
from cortiq.numerics.rope import RopeTable
from cortiq_reference.backend import ReferenceBackend

HIDDEN, DRAFT_HIDDEN = Named("hidden"), Named("mtp.hidden")
LOGITS = Named("logits")


def compiled(name: str, **options: Any) -> Executable:
    loaded = load_program(open_synthetic(f"synthetic:{name}"))
    options = {"threads": 1} | options
    return ReferenceBackend().compile(loaded.program, loaded.weights, CompileOptions(**options))


MIMO_IDS = [(7 * i + 3) % 64 for i in range(12)]


@pytest.mark.parametrize("layout", ["f32", "w16"])
def test_t36_decode_is_the_whole_prompt_is_two_chunks(layout):
    executable = compiled(f"tiny-mimo?format={layout}")
    expected, left = alone(executable, MIMO_IDS, (LOGITS, *WANTS))
    assert alive(expected)
    assert all(np.isfinite(row[LOGITS]).all() and row[LOGITS].std() > 1e-3 for row in expected)
    for sizes in ([1], [5, 7]):
        state = executable.open(12)
        assert same(in_chunks(executable, state, MIMO_IDS, sizes, (LOGITS, *WANTS)), expected)
        assert same(state.export(), left)
    planes = [left.slots[f"layers.{n}.kv"] for n in range(4)]
    assert [p.key_high.shape for p in planes] == [(12, heads, 8) for heads in (1, 2, 2, 1)]
    assert [p.value_low.shape for p in planes] == [(12, heads, 4) for heads in (1, 2, 2, 1)]


def test_t36_is_of_the_model_it_names():
    layers = [n.op for n in compiled("tiny-mimo").program.trunk.nodes
              if isinstance(n.op, Attention)]  # fmt: skip
    assert [op.kv_heads for op in layers] == [1, 2, 2, 1]
    assert [op.sinks for op in layers] == [False, True, True, False]
    assert [op.window for op in layers] == [None, 3, 3, None]
    assert [op.rope and op.rope.base for op in layers] == [1e7, 1e4, 1e4, 1e7]


def attending(program: Program) -> list[Attention]:
    return [node.op for node in program.trunk.nodes if isinstance(node.op, Attention)]


@pytest.mark.parametrize("name", ["tiny-mimo", "tiny-gemma3"])
def test_t18_windowed_layers_turn_by_their_own_table(name):
    """Each layer's queries are its heads turned, in float64, by its own table and by no other's."""
    executable = compiled(f"{name}?format=f32")
    primitives = primitives_of(executable.program).trunk.nodes
    turns = [node for node in primitives if isinstance(node.op, Rope)]
    wants = tuple(Named(v) for node in turns for v in (node.inputs[0], node.outputs[0]))
    ids = [(7 * i + 3) % 64 for i in range(40)]
    (found,) = feed(executable, executable.open(64), ids, wants)[-1:]
    tables = {node.op.table for node in turns}
    assert len(tables) == 2
    layers = {f"layers.{n}.": op.rope for n, op in enumerate(attending(executable.program))}
    for node in turns:
        x, turned = (np.asarray(found[Named(v)], np.float64)
                     for v in (node.inputs[0], node.outputs[0]))  # fmt: skip
        (own,) = (table for layer, table in layers.items() if node.name.startswith(layer))
        fits = {
            table: np.abs(turned - by_table(x, table, node.op.pairing, len(ids) - 1)).max()
            for table in tables
        }
        assert fits.pop(own) < 1e-5 < 1e-2 < min(fits.values())


def by_table(x: np.ndarray, table: RopeTable, pairing: str, position: int) -> np.ndarray:
    return ideal.apply_rope(x[None], *ideal.rope_table(table, np.array([position])), pairing)[0]


MODELS = [
    *("tiny-gemma3", "tiny-lfm2", "tiny-mimo"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("tiny-llama", "tiny-mixtral")),
]


@pytest.mark.parametrize("name", MODELS)
@examples(4)
@given(calls(), st.integers(0, 2**20), st.sampled_from(["w16", "w8", "f32"]))
def test_any_calls_on_a_model(name, calls, seed, layout):
    model = f"{name}?seed={seed}&format={layout}"
    homes = [compiled(model, page_rows=5, extra={"poison": True}), compiled(model)]
    Walk(homes, compiled(model), seed).take(calls)


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_in_chunks(name):
    executable, prompt = compiled(name), random_ids(80, 1)
    expected, left = alone(executable, prompt)
    assert alive(expected)
    for size in (1, 7, 64):
        state = executable.open(80)
        assert same(in_chunks(executable, state, prompt, [size]), expected)
        assert same(state.export(), left)


def drafted(executable: Executable, state: Any, token: int, hidden: np.ndarray, count: int) -> list:
    """A chain of drafts: each takes the token drawn before it and the hidden state of its maker."""
    answers, wants = [], (Argmax(), Digest(), DRAFT_HIDDEN)
    for step in range(count):
        row = Row(state, state.length("mtp"), Drawn(0) if step else token, wants,
                  {"hidden": hidden})  # fmt: skip
        answers += completed(executable, [row], entry="mtp")
        hidden = answers[-1][DRAFT_HIDDEN]
    return answers


def trunk_slots(state: Any) -> dict:
    return {name: slot for name, slot in state.export().slots.items() if name != "mtp.kv"}


def test_drafts_leave_the_trunks_bits_alone():
    """Every step drafts three tokens, forgets them, and feeds the head what really came."""
    executable, prompt = compiled("tiny-mtp", extra={"poison": True}), random_ids(70, 2)
    wants = (*WANTS, HIDDEN)
    plain, state = executable.open(100), executable.open(100)
    expected = in_chunks(executable, plain, prompt, [1], wants)
    for at, token in enumerate(prompt):
        (answer,) = feed(executable, state, [token], wants)
        assert same(answer, expected[at])
        drafts = drafted(executable, state, answer[Argmax()], answer[HIDDEN], 3)
        assert len({d[Digest()] for d in drafts}) == 3
        assert (state.length(), state.length("mtp")) == (at + 1, at + 3)
        assert state.rewind(at, "mtp") == state.length("mtp") == at
        assert state.length() == at + 1
        if at + 1 < len(prompt):
            row = Row(state, at, prompt[at + 1], (), {"hidden": answer[HIDDEN]})
            completed(executable, [row], entry="mtp")
    assert same(trunk_slots(state), trunk_slots(plain))
    assert state.export().tokens.tolist() == prompt


def head_rows(state: Any, prompt: list[int], trunk: list[dict], start: int, stop: int) -> list[Row]:
    """Rows of the draft head: the token at i+1 and the trunk's hidden state at i."""
    return [
        Row(state, i, prompt[i + 1], (Digest(), Argmax()), {"hidden": trunk[i][HIDDEN]})
        for i in range(start, stop)
    ]


def test_the_draft_head_keeps_the_bitwise_promises_too():
    executable, prompt = compiled("tiny-mtp"), random_ids(90, 3)
    state, other, third = (executable.open(100) for _ in range(3))
    trunk = feed(executable, state, prompt, (HIDDEN,))
    expected = completed(executable, head_rows(state, prompt, trunk, 0, 80), entry="mtp")
    assert len({row[Digest()] for row in expected}) > 70
    feed(executable, other, prompt, ())
    feed(executable, third, prompt[:40], ())
    answers = []
    for start in range(0, 80, 16):
        ours = head_rows(other, prompt, trunk, start, start + 16)
        theirs = head_rows(third, prompt, trunk, third.length("mtp"), third.length("mtp") + 5)
        answers += completed(executable, theirs, ours, entry="mtp")[5:]
    assert same(answers, expected)
    assert state.rewind(30, "mtp") == 30
    assert state.length() == 90
    again = completed(executable, head_rows(state, prompt, trunk, 30, 80), entry="mtp")
    assert same(again, expected[30:])
    assert state.rewind(50) == 50
    assert state.length("mtp") == 80
    assert same(feed(executable, state, prompt[50:], (HIDDEN,)), trunk[50:])
    moved = compiled("tiny-mtp", page_rows=9).import_(state.export(), 100)
    assert (moved.length(), moved.length("mtp")) == (90, 80)
    assert same(moved.export(), state.export())
    child = state.fork(60)
    assert (child.length(), child.length("mtp")) == (60, 80)


def test_a_failing_draft_clears_its_sequence_only():
    executable, prompt = compiled("tiny-mtp"), random_ids(20, 4)
    good, bad = executable.open(40), executable.open(40)
    trunk = feed(executable, good, prompt, (HIDDEN,))
    feed(executable, bad, prompt, ())
    group = head_rows(bad, prompt, trunk, 0, 5)
    group[3].inputs["hidden"] = np.full_like(trunk[3][HIDDEN], np.nan)  # type: ignore[index]
    result = forward(executable, head_rows(good, prompt, trunk, 0, 5), group, entry="mtp")
    assert result.outcomes[good].status is Status.COMPLETED
    assert result.outcomes[bad].status is Status.FAILED
    assert (bad.length(), bad.length("mtp")) == (0, 0)
    assert (good.length(), good.length("mtp")) == (20, 5)
    assert same(feed(executable, bad, prompt, (HIDDEN,)), trunk)


@pytest.mark.parametrize("count", [0, 1])
def test_rows_without_a_hidden_state_are_declined(count):
    executable = compiled("tiny-mtp")
    state = executable.open(40)
    (answer,) = feed(executable, state, [1], (HIDDEN,))
    group = [Row(state, 0, 2, (Digest(),), {"hidden": answer[HIDDEN]})] * count
    result = forward(executable, [*group, Row(state, count, 3)], entry="mtp")
    assert result.outcomes[state].status is Status.DECLINED
    assert (state.length(), state.length("mtp")) == (1, 0)
