"""Recurrent slots: going back, branching off and moving give the bits of a straight run."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from chains import IDS, ONE_THREAD, REFERENCE, alone, feed, placed, same
from small_program import CONTEXT, VOCABULARY, bound, small_program

from cortiq.backend import CompileOptions, Declined, Digest
from cortiq.errors import RequestError
from cortiq.placement.place import declined_nodes, place
from cortiq_conformance.case_data import CaseData
from cortiq_conformance.drives import SequenceInput, advance
from cortiq_conformance.level0.recurrences import PROBES
from cortiq_conformance.outputs import Named

ROWS = 200
WANTS = (Named("y"),)
every_recurrence = pytest.mark.parametrize("kind", PROBES)


def started(kind):
    """An executable, rows for it, and what each of them brings."""
    probe = PROBES[kind]()
    fed = probe.feed(CaseData(kind), ROWS)
    executable = REFERENCE.compile(probe.program, probe.weights, ONE_THREAD)
    return executable, fed, advance(executable, executable.open(CONTEXT), fed, (0, ROWS), WANTS)


def detour(executable, state, fed, start, count):
    """Other rows than those that belong here."""
    other = SequenceInput(fed.tokens[::-1], {name: x[::-1] for name, x in fed.inputs.items()})
    advance(executable, state, other, (start, start + count), WANTS)


@every_recurrence
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129, 190])
@pytest.mark.parametrize("ahead", [1, 9, 64])
def test_rewind_is_never_having_gone_ahead(kind, length, ahead):
    executable, fed, expected = started(kind)
    state = executable.open(CONTEXT)
    for start in range(0, length, 50):
        advance(executable, state, fed, (start, min(start + 50, length)), WANTS)
    detour(executable, state, fed, length, min(ahead, ROWS - length))
    assert state.rewind(length) == length == state.length()
    again = advance(executable, state, fed, (length, ROWS), WANTS)
    assert same([dict(row) for row in again], [dict(row) for row in expected[length:]])


@every_recurrence
def test_going_back_far_is_going_back_to_the_start(kind):
    executable, fed, expected = started(kind)
    state = executable.open(CONTEXT)
    advance(executable, state, fed, (0, ROWS), WANTS)
    assert state.rewind(150) == 150  # and once more, from there
    assert state.rewind(130) == 130
    assert state.rewind(60) == 0 == state.length()
    again = advance(executable, state, fed, (0, ROWS), WANTS)
    assert same([dict(row) for row in again], [dict(row) for row in expected])


@every_recurrence
def test_an_imported_state_goes_on_and_goes_back_as_far_as_it_was_imported(kind):
    executable, fed, expected = started(kind)
    state = executable.open(CONTEXT)
    advance(executable, state, fed, (0, 100), WANTS)
    moved = executable.import_(state.export(), CONTEXT)
    detour(executable, moved, fed, 100, 5)
    assert moved.rewind(100) == 100
    rest = advance(executable, moved, fed, (100, ROWS), WANTS)
    assert same([dict(row) for row in rest], [dict(row) for row in expected[100:]])
    assert moved.rewind(100) == 0


@every_recurrence
def test_states_of_another_shape_or_out_of_the_domain_are_refused(kind):
    executable, fed, _ = started(kind)
    state = executable.open(CONTEXT)
    advance(executable, state, fed, (0, 3), WANTS)
    exported = state.export()
    for bad in (exported.slots["state"][:1], np.full_like(exported.slots["state"], 2.0**50)):
        with pytest.raises(RequestError, match="exported state"):
            executable.import_(replace(exported, slots={"state": bad}), CONTEXT)


@every_recurrence
def test_memory_is_counted_before_it_is_used(kind):
    probe = PROBES[kind]()
    need = REFERENCE.compile(probe.program, probe.weights, ONE_THREAD).state_bytes(10)
    assert need >= 3 * 4 * prod(probe.program.slots["state"].shape)
    options = replace(ONE_THREAD, memory_limit=2 * need)
    executable = REFERENCE.compile(probe.program, probe.weights, options)
    states = [executable.open(CONTEXT) for _ in range(3)]
    assert [executable.free_bytes(), states[0].reserve(10)] == [-need, False]
    states.pop().release()
    assert states[0].reserve(10)


def test_a_chain_goes_back_as_far_as_its_parts_do():
    """To the start, where one part keeps no copy that old; the ids in between are fed again."""
    ids = [(7 * i) % VOCABULARY for i in range(170)]
    chain = placed("what a delta rule takes")
    state = chain.open(CONTEXT)
    expected = feed(chain, state, ids)
    assert state.rewind(150) == 150
    assert state.rewind(20) == 0 == state.length()
    assert same(feed(chain, state, ids), expected)


def test_what_the_cpu_backend_declines_is_computed_by_the_reference():
    """The bits of the reference alone; the delta rule's slot lives in the fallback's part."""
    pytest.importorskip("cortiq_cpu")
    from cortiq_cpu.backend import CpuBackend
    from cortiq_cpu.native import supported_isas

    try:
        supported_isas()
    except Exception as error:
        pytest.skip(str(error))
    reference = alone()
    expected = feed(reference, reference.open(CONTEXT), IDS)

    class Without(CpuBackend):
        def supports(self, node, graph, program):
            if node.op.kind == "DeltaRule":
                return Declined("not here")
            return super().supports(node, graph, program)

    options = CompileOptions(threads=1)
    executable = place(Without(), *bound(small_program()), options, fallback=REFERENCE)
    assert declined_nodes(executable)["layers.1.delta"] == "not here"
    state = executable.open(CONTEXT)
    feed(executable, state, [*IDS[:6], 40, 41], (Digest(),))
    assert state.rewind(6) == 6
    assert same(feed(executable, state, IDS[6:]), expected[6:])
    executable.close()
