"""The CPU backend's rotary embedding by positions of several axes: the reference's bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cortiq.backend import Batch, CompileOptions, Named, Row, Status
from cortiq.errors import BackendError
from cortiq.ir import Type, ops
from cortiq.ir.layers import Attention
from cortiq.numerics.rope import RopeTable, Sections
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.layers import layer_probe
from cortiq_conformance.probes import OUTPUT, one
from cortiq_reference.backend import ReferenceBackend

pytest.importorskip("cortiq_cpu")
from cortiq.backend.paged_executable import EARLY_POSITIONS
from cortiq_cpu import native
from cortiq_cpu.backend import CpuBackend

try:
    native.library()
except BackendError as error:
    pytest.skip(str(error), allow_module_level=True)

TABLE, ROWS = RopeTable(1e4, 16), 300
SECTIONS = [Sections((4, 2, 2)), Sections((4, 2, 2), interleaved=True)]
WANTS = (Named(OUTPUT), Named("turns"))


def rows_of(state, feed, start, stop, asking):
    """Rows of a feed; those in `asking` want values."""
    inputs = [{name: given[i] for name, given in feed.inputs.items()} for i in range(start, stop)]
    wanted = [WANTS if i in asking else () for i in range(start, stop)]
    return [
        Row(state, start + i, int(feed.tokens[start + i]), wants, given)
        for i, (wants, given) in enumerate(zip(wanted, inputs, strict=True))
    ]


def answers(backend, probe, feed, cuts, asking):
    """Return the results of rows computed in pieces that end at `cuts`."""
    executable = backend.compile(probe.program, probe.weights, CompileOptions(threads=2))
    state, found = executable.open(ROWS), []
    for start, stop in zip([0, *cuts], [*cuts, ROWS], strict=True):
        result = executable.forward(Batch(rows_of(state, feed, start, stop, asking))).result()
        assert result.outcomes[state].status is Status.COMPLETED
        found += [row for row in result.rows if row]
    executable.close()
    return found


@pytest.mark.parametrize("sections", SECTIONS, ids=["in a row", "interleaved"])
@pytest.mark.parametrize("cuts", [[], [1, 2, 70]], ids=["at once", "in pieces"])
@pytest.mark.parametrize("asking", [range(ROWS), range(5, ROWS, 7)], ids=["all", "some"])
def test_each_pair_turns_by_the_position_of_its_axis(sections, cuts, asking):
    """Queries of rows that want nothing are not computed: the tail's rows are others."""
    op = Attention(width=64, heads=4, kv_heads=2, head_dim=16, rope=TABLE, sections=sections)
    probe = layer_probe(op, "Q4_1", CaseData("sections"))
    feed = probe.feed(CaseData("rows"), ROWS)
    mine = answers(CpuBackend(), probe, feed, cuts, asking)
    theirs = answers(ReferenceBackend(), probe, feed, [], asking)
    assert len(mine) == len(theirs) == len(asking)
    for found, expected in zip(mine, theirs, strict=True):
        for want in WANTS:
            np.testing.assert_array_equal(found[want], expected[want], strict=True)


def turned(executable, positions):
    """Outcome and answer of a row that supplies positions, in a new sequence of one row."""
    state, want = executable.open(1), Named("y")
    inputs = {"x": np.ones((2, 16), np.float32), "positions": np.array(positions)}
    result = executable.forward(Batch([Row(state, 0, 0, (want,), inputs)])).result()
    length = state.length()
    state.release()
    return result.outcomes[state], result.rows[0].get(want), length


@pytest.fixture
def executables():
    op, kind = ops.Rope(TABLE, sections=SECTIONS[0]), Type((3,), "i32")
    program = one(op, {"x": Type((2, 16)), "positions": kind}).program
    program = replace(program, context=EARLY_POSITIONS + 3000)
    made = [b.compile(program, {}, CompileOptions()) for b in (CpuBackend(), ReferenceBackend())]
    yield made
    for executable in made:
        executable.close()


def test_positions_of_a_short_sequence_reach_to_the_end_of_the_context(executables):
    for positions in ([0, 2000, 7], [EARLY_POSITIONS, 1, EARLY_POSITIONS + 2999]):
        (_, mine, length), (_, theirs, _) = (turned(e, positions) for e in executables)
        np.testing.assert_array_equal(mine, theirs, strict=True)
        assert length == 1


@pytest.mark.parametrize("beyond", [EARLY_POSITIONS + 3000, 2**31, 2**40])
def test_positions_beyond_the_context_are_declined_by_name(executables, beyond):
    outcome, answer, length = turned(executables[0], [0, beyond, 0])
    assert outcome.status is Status.DECLINED and answer is None and length == 0
    assert f"supplies the position {beyond}" in outcome.reason


def test_no_table_is_computed_while_a_batch_runs(executables, monkeypatch):
    def forbidden(*arguments):
        raise AssertionError("a rotary table was computed while a batch ran")

    executable, positions = executables[0], [EARLY_POSITIONS - 1, 3, 2000]
    _, expected, _ = turned(executables[1], positions)
    for kind, name in ((RopeTable, "compute"), (RopeTable, "table"), (Sections, "table")):
        monkeypatch.setattr(kind, name, forbidden)
    _, found, _ = turned(executable, positions)
    np.testing.assert_array_equal(found, expected)
