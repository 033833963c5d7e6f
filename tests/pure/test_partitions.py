"""Random programs cut among random owners give the bits of the program left whole."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from chains import partial_by_name
from graphs import Bound, examples, ids, programs
from hypothesis import given
from hypothesis import strategies as st
from sequences import alone, feed, in_chunks, same
from walk import Walk, calls

from cortiq.backend import CompileOptions, Digest, Executable, Named
from cortiq.ir import Node
from cortiq.placement.place import place, place_split
from cortiq_reference.backend import ReferenceBackend

REFERENCE = ReferenceBackend()
ONE_THREAD = CompileOptions(threads=1)
SEEDS, SHARES = st.integers(0, 2**32 - 1), st.integers(1, 9)


def whole(bound: Bound) -> Executable:
    return REFERENCE.compile(bound.program, bound.weights, ONE_THREAD)


def at_random(seed: int, share: int) -> Callable[[Node], bool]:
    """Takes about share/10 of the nodes: layers, and the primitives of those it declines."""
    return lambda node: zlib.crc32(node.name.encode(), seed) % 10 < share


def owned_by_two(bound: Bound, seed: int, share: int) -> Executable:
    backend = partial_by_name(at_random(seed, share))
    return place(backend, bound.program, bound.weights, ONE_THREAD, fallback=REFERENCE)


def split(bound: Bound, shares: list[float]) -> Executable:
    count = len(bound.program.trunk.nodes)
    cuts = sorted({1 + int(share * (count - 2)) for share in shares})
    assignments = [
        (REFERENCE, CompileOptions(threads=1, page_rows=5 + 9 * i, extra={"poison": True}))
        for i in range(len(cuts) + 1)
    ]
    return place_split(assignments, bound.program, bound.weights, cuts)


CUTS = st.lists(st.floats(0, 1), min_size=1, max_size=3)


@examples(6)
@given(programs(), ids(st.integers(65, 90)), SEEDS, SHARES)
def test_nodes_owned_by_two_backends(bound, prompt, seed, share):
    expected, left = alone(whole(bound), prompt)
    executable = owned_by_two(bound, seed, share)
    state = executable.open(len(prompt))
    assert same(in_chunks(executable, state, prompt, [40, 1]), expected)
    assert same(state.export(), left)


@examples(6)
@given(programs(), ids(st.integers(65, 90)), CUTS)
def test_layers_split_over_executables(bound, prompt, cuts):
    expected, left = alone(whole(bound), prompt)
    executable = split(bound, cuts)
    state = executable.open(len(prompt))
    assert same(in_chunks(executable, state, prompt, [33]), expected)
    assert same(state.export(), left)


@examples(5)
@given(programs(blocks=(1, 2)), SEEDS, SHARES, calls(), st.integers(0, 2**20))
def test_any_calls_on_nodes_owned_by_two_backends(bound, seed, share, calls, walk):
    Walk([owned_by_two(bound, seed, share), whole(bound)], whole(bound), walk).take(calls)


@examples(5)
@given(programs(blocks=(1, 2)), CUTS, calls(), st.integers(0, 2**20))
def test_any_calls_on_layers_split_over_executables(bound, cuts, calls, walk):
    Walk([split(bound, cuts), whole(bound)], whole(bound), walk).take(calls)


@examples(5)
@given(programs(), ids(20), SEEDS, SHARES, st.data())
def test_values_of_every_owner_can_be_asked_for(bound, prompt, seed, share, data):
    trunk = bound.program.trunk
    made = [name for node in trunk.nodes for name in node.outputs]
    names = data.draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
    wants = (*map(Named, names), *map(Digest, names))
    executable = owned_by_two(bound, seed, share)
    answers = feed(executable, executable.open(32), prompt, wants)
    assert same(answers, alone(whole(bound), prompt, wants)[0])
