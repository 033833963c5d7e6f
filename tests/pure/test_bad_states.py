"""States and rows from outside: what breaks the protocol is refused, and moves nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cortiq.backend import (
    Argmax,
    Batch,
    CompileOptions,
    Digest,
    Drawn,
    KVPlanes,
    Named,
    Row,
    Status,
    Top,
)
from cortiq.errors import BackendError, RequestError
from cortiq.ir import Type, ops
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.rope import RopeTable, Sections
from cortiq_conformance.probes import one
from cortiq_reference.backend import ReferenceBackend


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-lfm2"])
def executables(request):
    loaded = load_program(open_synthetic(f"synthetic:{request.param}"))
    backend = ReferenceBackend()
    made = [backend.compile(loaded.program, loaded.weights, CompileOptions()) for _ in range(2)]
    yield made
    for executable in made:
        executable.close()


@pytest.fixture(scope="module")
def exported(executables):
    state = executables[0].open(32)
    executables[0].forward(Batch([Row(state, i, i + 1) for i in range(6)])).result()
    return state.export()


def hostile(exported):
    """(what, state) for every part of an exported state got wrong in every way we know."""
    change = lambda **parts: dataclasses.replace(exported, **parts)  # noqa: E731
    for lengths in ({}, {"trunk": 5}, {"trunk": -1}, {"trunk": "6"}, {"trunk": 6, "x": 1}, None):
        yield f"lengths {lengths}", change(lengths=lengths)
    tokens = exported.tokens
    for ids in (tokens[:3], tokens - 9, tokens + 999, tokens * 1.0, tokens[None], None, "a", [1]):
        yield f"tokens {ids}", change(tokens=ids)
    yield "no slots", change(slots={})
    yield "other slots", change(slots=exported.slots | {"x": tokens})
    for name, slot in exported.slots.items():
        for what, wrong in hostile_slot(slot):
            yield f"{name} {what}", change(slots=exported.slots | {name: wrong})


def hostile_slot(slot):
    yield "nothing", None
    if not isinstance(slot, KVPlanes):
        for array in (slot * np.nan, slot + np.float32(2.0**50), slot[1:], slot.T, slot * 1e0j):
            yield f"{array.dtype}{array.shape}", array
        yield "float64", slot.astype(np.float64)
        return
    for field in dataclasses.fields(slot):
        plane = getattr(slot, field.name)
        wrong = [plane[:3], plane[:, :0], plane.astype(np.float32), plane.astype(np.int32), None]
        wrong += [plane.view(np.uint8), plane.T, np.concatenate([plane, plane])]
        if not field.name.endswith("low"):
            wrong += [np.full_like(plane, 127), np.full_like(plane, -128)]
        for other in wrong:
            yield f"{field.name}", dataclasses.replace(slot, **{field.name: other})


def test_no_hostile_state_is_imported_and_none_is_left_behind(executables, exported):
    executable = executables[0]
    count = len(executable.states)
    for what, state in hostile(exported):
        with pytest.raises(RequestError):
            executable.import_(state, 32)
            pytest.fail(f"imported: {what}")
        assert len(executable.states) == count, what
    for limit in (5, 0, -1, None):
        with pytest.raises(RequestError):
            executable.import_(exported, limit)
    executable.import_(exported, 32).release()


NAN, WANTS = np.full(64, np.nan, np.float32), (Argmax(),)


@pytest.mark.parametrize(
    "row",
    [
        {"position": 1}, {"position": -1}, {"token": -1}, {"token": 10**6}, {"token": 2**70},
        {"token": "a"}, {"token": None}, {"token": 1.5}, {"token": float("nan")},
        {"token": Drawn(-1)}, {"token": Drawn(9)}, {"token": Drawn("a")},
        {"wants": (Named("x"),)}, {"wants": (Digest("x"),)}, {"wants": ("x",)},
        {"wants": (Top(0),)}, {"wants": (Top(10**9),)}, {"wants": (Top("a"),)},
        {"inputs": {"x": NAN}}, {"inputs": {"embed": NAN[:3]}}, {"inputs": {"embed": "a"}},
        {"inputs": {"token": np.array(1)}}, {"inputs": {"embed": NAN * 1e0j}},
    ],
    ids=str,
)  # fmt: skip
def test_rows_that_break_the_protocol_are_declined_and_move_nothing(row, executables):
    executable = executables[0]
    clean = step(executable, executable.open(8))
    state = executable.open(8)
    step(executable, executable.open(8))
    given = {"position": 0, "token": 1, "wants": WANTS} | row
    outcome = executable.forward(Batch([Row(state, **given)])).result().outcomes[state]
    assert outcome.status is Status.DECLINED and outcome.reason
    assert step(executable, state) == clean


def step(executable, state):
    """Digest of the logits of token 7 as the sequence's first."""
    want = Digest("logits")
    return executable.forward(Batch([Row(state, 0, 7, (want, Argmax()))])).result().rows[0][want]


def test_rows_of_released_sequences_and_of_other_executables_are_refused(executables):
    executable, other = executables
    good, gone, foreign = executable.open(8), executable.open(8), other.open(8)
    gone.release()
    clean = step(executable, executable.open(8))
    for state in (gone, foreign, None, 5):
        with pytest.raises(BackendError):
            executable.forward(Batch([Row(good, 0, 1), Row(state, 0, 1)]))
    with pytest.raises(RequestError, match="no entry graph"):
        executable.forward(Batch([Row(good, 0, 1)], "x"))
    assert step(executable, good) == clean


def test_a_fault_always_fails_the_request(executables):
    executable = executables[0]
    for value in (np.nan, np.inf, -np.inf, 2.0**50, 1e300):
        state = executable.open(8)
        row = Row(state, 0, 1, WANTS, {"embed": np.full(64, value)})
        result = executable.forward(Batch([row])).result()
        assert result.outcomes[state].status is Status.FAILED and not result.rows[0]
        state.release()


@pytest.mark.parametrize("positions", [[0, -1, 2], [0.0, 1.0, 2.0], [0, 1], [[0, 1, 2]]])
def test_integers_that_a_row_supplies_are_whole_and_count_from_0(positions):
    """Positions of three axes: a negative one would be the last of the table."""
    op, kinds = ops.Rope(RopeTable(1e4, 8), sections=Sections((2, 1, 1))), Type((3,), "i32")
    probe = one(op, {"x": Type((2, 8)), "positions": kinds})
    executable = ReferenceBackend().compile(probe.program, {}, CompileOptions())
    state, want = executable.open(8), Named("y")
    for given, status in ((positions, Status.DECLINED), ([0, 1, 2], Status.COMPLETED)):
        inputs = {"x": np.ones((2, 8), np.float32), "positions": np.array(given)}
        row = Row(state, 0, 0, (want,), inputs)
        assert executable.forward(Batch([row])).result().outcomes[state].status is status
