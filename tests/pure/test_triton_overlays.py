"""Steps of rows with overlays on the Triton backend: captured, with the numbers as data."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

import small_program
from sequences import same

from cortiq.backend import Argmax, Batch, CompileOptions, Digest, Named, Row, Status, admission
from cortiq.ir import Builder, ops
from cortiq.ir.layers import Attention, Embedding, Linear, Residual
from cortiq.ir.overlay_graphs import with_overlays
from cortiq.ir.overlays import OverlayChange, changeable, overlay_inputs
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.case_overlays import random_bank
from cortiq_reference.backend import ReferenceBackend
from cortiq_triton import low_rank
from cortiq_triton.backend import TritonBackend
from cortiq_triton.decoding_step import DecodingStep
from cortiq_triton.mixed import MixedFetched
from cortiq_triton.steps import Fused

WIDTH, VOCABULARY, MEMBERS = 16, 24, 4
WANTS = (Argmax(), Digest("logits"))
STEPS = ((1, 0, 2), (3, 3, 0), (0, 1, 1))
"""Overlays of each step's rows."""


@pytest.fixture(scope="module")
def model():
    b = Builder(context=64, facts={"vocab_size": VOCABULARY})
    token, position = b.input("token"), b.input("position")
    x = b.add(Embedding(VOCABULARY, WIDTH), token, name="embed", weights={"table": "embed"})
    op = Attention(WIDTH, 1, 1, WIDTH)
    weights = {role: f"0.{role}" for role in op.weight_shapes()}
    y = b.add(op, x, position, name="a", weights=weights, slots={"kv": "kv.0"})
    x = b.add(Residual(), x, y, name="x0")
    b.add(Linear(WIDTH, VOCABULARY), x, name="logits", weights={"weight": "embed"})
    b.graph("trunk", ("logits",))
    return small_program.bound(b.program(), 2)


def varied(model, seed, tables=False, gain=True):
    program, weights = model
    changes = {
        key: OverlayChange(3, gain=gain and not key[1], table=key[1])
        for key in changeable(program)
        if tables or not key[1]
    }
    made, source = with_overlays(program, MEMBERS, changes), CaseData(f"overlays {seed}")
    names = sorted(made.weights.keys() - program.weights.keys())
    banks = {n: random_bank(source, n, made.weights[n].shape, MEMBERS) for n in names}
    return made, {**weights, **banks}


def steps(on):
    """Return results of three sequences in steps of changing overlays, and kinds of tickets."""
    states, found, kinds = [on.open(16) for _ in range(3)], [], []
    for at, numbers in enumerate(STEPS):
        rows = [
            Row(state, at, 3 + place, WANTS, overlay_inputs(number))
            for place, (state, number) in enumerate(zip(states, numbers, strict=True))
        ]
        ticket = on.forward(Batch(rows))
        kinds.append(type(ticket))
        found += ticket.result().rows
    for state in states:
        state.release()
    return found, kinds


@pytest.fixture(scope="module")
def captured(model):
    on = TritonBackend().compile(*model, CompileOptions(extra={"graphs": True, "poison": True}))
    yield on
    on.close()


def test_steps_of_overlays_are_captured_and_banks_may_change(model, captured):
    defined = ReferenceBackend().compile(*model, CompileOptions())
    answers = []
    for seed in range(2):
        for on in (defined, captured):
            on.vary(*varied(model, seed))
        found, kinds = steps(captured)
        assert same(found, steps(defined)[0]) and set(kinds) == {DecodingStep}
        assert len(captured.decoder.shapes) == 1  # not one for each choice, nor of what was before
        answers.append([row[WANTS[1]] for row in found])
    assert answers[0] != answers[1]


def names_low_rank(step):
    return isinstance(step.node.op, Fused) and step.node.op.name == "LowRank"


def test_products_are_fused_beside_overlays(model, captured):
    """Norms, sums and quantised rows are, and both factors of a row's matrices; matrices are one
    where they are without overlays, and none a second time.
    """
    captured.vary(*varied(model, 0, gain=False))
    plan, plain = captured.varied["trunk"], captured.plans["trunk"]
    fused = plan.fused(frozenset({"logits"}), frozenset())
    names = [step.node.op.name for step, _ in fused if isinstance(step.node.op, Fused)]
    assert names.count("LowRank") == 4  # k and v; q, which is late; o; the logits
    ours = [(b, s) for (b, _), (s, _) in pairwise(fused) if names_low_rank(s)]
    assert [bool(s.node.op.detail.parts[0].residual) for _, s in ours] == [
        False,
        False,
        True,
        False,
    ]
    beside = [(b, s) for b, s in ours if s.weights]  # a product of the same row, just before
    assert beside and all(b.node.inputs[0] == s.node.inputs[0] for b, s in beside)
    assert all(b.weights["weight"] is s.weights["weight"] for b, s in beside)
    assert not any(isinstance(step.node.op, ops.ExpertMatMul) for step, _ in fused)
    wholes, ours = plain.joined.wholes, plan.joined.wholes
    assert ours and ours.keys() == wholes.keys()
    assert all(whole is ours[key] for key, whole in wholes.items())


def test_products_that_a_row_names_are_without_what_overlays_add(model, captured):
    """Sums lie where products are unless somebody else reads these."""
    defined, found = ReferenceBackend().compile(*model, CompileOptions()), []
    program, weights = varied(model, 3, gain=False)
    named = [Named(name) for name in program.trunk.values if name.endswith(".base")]
    for on in (defined, captured):
        on.vary(program, weights)
        state = on.open(16)
        rows = [Row(state, i, 3 + i, (*named, *WANTS), overlay_inputs(i + 1)) for i in range(3)]
        found.append(on.forward(Batch(rows)).result().rows)
        state.release()
    assert len(named) > 3 and same(*found)


def batches(on, choices, rows=1):
    """Return results of batches with so many rows of a sequence for each number, and tickets."""
    states, found, tickets = [on.open(64) for _ in choices[0]], [], []
    for at, numbers in enumerate(choices):
        given = [
            Row(state, at * rows + i, (3 + place + i) % VOCABULARY, wants, overlay_inputs(number))
            for place, (state, number) in enumerate(zip(states, numbers, strict=True))
            for i in range(rows)
            for wants in [WANTS if i == rows - 1 else ()]
        ]
        tickets.append(on.forward(Batch(given)))
        found += tickets[-1].result().rows
    for state in states:
        state.release()
    return found, tickets


MANY = ((3, 1, 2, 2, 0, 1, 1, 3, 0, 2, 1, 3), (1, 1, 3, 0, 2, 2, 2, 0, 3, 3, 0, 1))


@pytest.mark.parametrize(
    ("choices", "rows"), [(((1, 2, 0, 3),), 1), (MANY, 1), (((1, 2), (2, 0), (3, 1)), 17)]
)
def test_overlays_of_a_captured_shape_are_data(model, captured, choices, rows):
    """Fewer rows than overlays read their factors; more are grouped, anew in every batch. Pieces of
    prompts are captured, too.
    """
    defined = ReferenceBackend().compile(*model, CompileOptions())
    for on in (defined, captured):
        on.vary(*varied(model, 1, gain=False))  # the residual is added in the launch, too
    (expected, _), (found, tickets) = (batches(on, choices, rows) for on in (defined, captured))
    assert same(found, expected)
    if rows > 1:
        assert {type(ticket.fetched) for ticket in tickets} == {MixedFetched}
        assert len(captured.decoder.mixed.shapes) == 1
        captured.vary(None, {})
        assert not captured.decoder.mixed.shapes  # a later plan's are others


def test_tiles_of_outputs_follow_one_another(model, captured, monkeypatch):
    """Outputs are several programs', the last one's not full; in the interpreter else one's."""
    monkeypatch.setattr(low_rank, "TILED", 16)
    monkeypatch.setattr(low_rank, "OUTPUTS", 16)
    captured.decoder.forget()
    defined = ReferenceBackend().compile(*model, CompileOptions())
    for on in (defined, captured):
        on.vary(*varied(model, 2))
    assert same(*(batches(on, MANY[:1])[0] for on in (captured, defined)))


def test_tables_of_overlays_are_computed_batch_by_batch(model, captured):
    defined = ReferenceBackend().compile(*model, CompileOptions())
    for on in (defined, captured):
        on.vary(*varied(model, 0, tables=True))
    found, kinds = steps(captured)
    assert same(found, steps(defined)[0]) and DecodingStep not in kinds


def test_overlays_that_rows_share_are_checked_once(model, captured, monkeypatch):
    """One that there is not is refused, in a step and in the middle of a prompt."""
    looked = []
    unfit = admission._unfit
    monkeypatch.setattr(
        admission, "_unfit", lambda *given: looked.append(given[1]) or unfit(*given)
    )
    captured.vary(*varied(model, 1))
    state = captured.open(64)
    for position, numbers, refused in (
        (0, [1] * 17, False),
        (17, [2], False),
        (18, [MEMBERS], True),
        (18, [2, 2, MEMBERS, 2], True),
        (18, [3], False),
    ):
        looked.clear()
        rows = [
            Row(state, position + i, 5, WANTS, overlay_inputs(n)) for i, n in enumerate(numbers)
        ]
        outcome = captured.forward(Batch(rows)).result().outcomes[state]
        assert outcome.status is (Status.DECLINED if refused else Status.COMPLETED)
        assert refused or len(looked) == (2 if position == 0 else 0)
    state.release()
