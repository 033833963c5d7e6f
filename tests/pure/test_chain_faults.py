"""A failure in one part of a chain leaves every part unchanged, or cleared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chains import IDS, ONE_THREAD, REFERENCE, feed, rows, same, split
from small_program import CONTEXT, WIDTH, bound, small_program

from cortiq.backend import Batch, Device, Executable, Named, Row, State, Status, Supported, Versions
from cortiq.errors import BackendError
from cortiq.placement.place import place_split


class Breaks:
    """A backend whose executable does something wrong in its n-th batch."""

    name, priority, versions = "breaks", 1, Versions()

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def devices(self):
        return [Device("one")]

    def supports(self, node, graph, program):
        return Supported()

    def compile(self, program, weights, options):
        executable = REFERENCE.compile(program, weights, options)
        forward, owner = executable.forward, self

        def broken(batch):
            if owner.fault == "raises":
                raise OSError("the device is gone")
            if owner.fault == "declines":
                batch = replace(batch, rows=[replace(r, position=99) for r in batch.rows])
            return forward(batch)

        executable.forward = broken
        return executable


def late_fault(convolution: bool) -> tuple[Breaks, Executable, State]:
    program, weights = bound(small_program(convolution=convolution))
    backend = Breaks("")
    parts = [(REFERENCE, ONE_THREAD), (backend, ONE_THREAD)]
    executable = place_split(parts, program, weights, ["layers.2"])
    state = executable.open(CONTEXT)
    feed(executable, state, IDS[:5])
    return backend, executable, state


def test_a_late_decline_moves_nothing() -> None:
    backend, executable, state = late_fault(convolution=True)
    wanted = feed(executable, state.fork(), IDS[5:])
    backend.fault = "declines"
    result = executable.forward(Batch(rows(state, IDS[5:]))).result()
    assert result.outcomes[state].status is Status.DECLINED
    assert "breaks: positions must go on" in result.outcomes[state].reason
    assert state.lengths("trunk") == [5, 5]
    backend.fault = ""
    assert same(feed(executable, state, IDS[5:]), wanted)


def test_a_late_decline_that_cannot_be_undone_is_a_failure() -> None:
    backend, executable, state = late_fault(convolution=True)
    first = state.parts[0]
    rewind = first.rewind
    first.rewind = lambda length, entry="trunk": rewind(0, entry)
    backend.fault = "declines"
    result = executable.forward(Batch(rows(state, IDS[5:]))).result()
    assert result.outcomes[state].status is Status.FAILED
    assert "cannot go back" in result.outcomes[state].reason
    assert state.lengths("trunk") == [0, 0]


def test_an_exception_leaves_the_sequence_as_it_was() -> None:
    backend, executable, state = late_fault(convolution=False)
    wanted = feed(executable, state.fork(), IDS[5:])
    backend.fault = "raises"
    with pytest.raises(BackendError, match="failed: OSError: the device is gone"):
        executable.forward(Batch(rows(state, IDS[5:])))
    assert state.lengths("trunk") == [5, 5]
    backend.fault = ""
    assert same(feed(executable, state, IDS[5:]), wanted)


def test_memory_that_a_late_part_lacks_is_found_out_before_the_first_part_moves() -> None:
    program, weights = bound(small_program(convolution=False))
    parts = [(REFERENCE, ONE_THREAD), (REFERENCE, replace(ONE_THREAD, memory_limit=0))]
    executable = place_split(parts, program, weights, ["layers.2"])
    state = executable.open(CONTEXT)
    state.undo = None  # there is nothing to undo
    outcome = executable.forward(Batch(rows(state, IDS))).result().outcomes[state]
    assert outcome.status is Status.DECLINED
    assert "no room" in outcome.reason


def test_a_failure_clears_every_entry_graph() -> None:
    executable = split(["layers.2"], head=True)
    state = executable.open(CONTEXT)
    (hidden,) = feed(executable, state, IDS[:1], (Named("hidden"),))
    executable.forward(Batch([Row(state, 0, 1, (), {"hidden": hidden[Named("hidden")]})], "draft"))
    assert state.length("draft") == 1
    infinite = np.full(WIDTH, np.inf, np.float32)
    result = executable.forward(Batch([Row(state, 1, 1, (), {"embed": infinite})])).result()
    assert result.outcomes[state].status is Status.FAILED
    assert (state.length(), state.length("draft")) == (0, 0)
