"""Sequences of recurrent probes that go back and move: checks that backends share."""

from __future__ import annotations

from sequences import same

from cortiq.backend import CompileOptions
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput, advance
from cortiq_conformance.level0.recurrences import PROBES
from cortiq_conformance.outputs import Named
from cortiq_reference.backend import ReferenceBackend

CONTEXT, WANTS = 256, (Named("y"),)


def rows(outcome):
    """Return the results of each row."""
    return [dict(row) for row in outcome]


def started(name, backend, options, count):
    """Return an executable, rows for it, and what the reference brings for each of them."""
    probe = PROBES[name]()
    fed = probe.feed(CaseData(name), count)
    reference = ReferenceBackend().compile(probe.program, probe.weights, CompileOptions())
    expected = rows(advance(reference, reference.open(CONTEXT), fed, (0, count), WANTS))
    return backend.compile(probe.program, probe.weights, options), fed, expected


def check_rewind(executable, fed, expected, length, ahead):
    """Check that a sequence that went ahead and back has the bits of one that did not."""
    count, state = len(expected), executable.open(CONTEXT)
    for start in range(0, length, 50):
        advance(executable, state, fed, (start, min(start + 50, length)), WANTS)
    other = SequenceInput(fed.tokens[::-1], {name: x[::-1] for name, x in fed.inputs.items()})
    advance(executable, state, other, (length, min(length + ahead, count)), WANTS)
    branch = state.fork(length)
    assert state.rewind(length) == length == state.length()
    for one in (state, branch):
        assert same(rows(advance(executable, one, fed, (length, count), WANTS)), expected[length:])
        one.release()


def check_move(executable, fed, expected, farthest):
    """Check that a moved sequence goes back to where it came from, or to its start."""
    count = len(expected)
    state, moved = executable.open(CONTEXT), executable.open(CONTEXT)
    advance(executable, state, fed, (0, 70), WANTS)
    moved.load(state.export())
    advance(executable, moved, fed, (70, farthest), WANTS)
    assert moved.rewind(100) == 100
    assert moved.rewind(70) == 70
    assert same(rows(advance(executable, moved, fed, (70, count), WANTS)), expected[70:])
    assert moved.rewind(60) == 0
    assert same(rows(advance(executable, moved, fed, (0, count), WANTS)), expected)
    state.release()
    moved.release()
