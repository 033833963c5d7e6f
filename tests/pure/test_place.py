"""Placement of nodes: which backend computes each, reports, and failures in a chain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chains import (
    BACKENDS,
    ONE_THREAD,
    PRIMITIVE_KINDS,
    REFERENCE,
    Partial,
    feed,
    partial,
    placed,
    rows,
    same,
    split,
)
from small_program import CONTEXT, bound, small_program

from cortiq.backend import (
    Batch,
    Named,
    Row,
    Status,
)
from cortiq.errors import BackendError, CortiqError, DeclinedError, GraphError, RequestError
from cortiq.ir import Builder
from cortiq.ir.layers import Embedding, Linear
from cortiq.ir.ops import Attend, Quantise, Reshape, Scale, StoreKV
from cortiq.placement.partition import partition
from cortiq.placement.place import declined_nodes, place, place_split


def test_a_memory_limit_is_kept_and_shared() -> None:
    program, weights = bound(small_program(convolution=False, recurrence=False))
    need = REFERENCE.compile(program, weights, ONE_THREAD).state_bytes(64)
    options = replace(ONE_THREAD, memory_limit=need)
    chain = place_split([(REFERENCE, options)] * 2, program, weights, ["layers.2"])
    assert chain.free_bytes() == need
    state = chain.open(CONTEXT)
    assert not state.reserve(65)
    assert state.reserve(64)
    outcome = chain.forward(Batch(rows(chain.open(8), [1]))).result().outcomes
    assert [o.status for o in outcome.values()] == [Status.DECLINED]


@pytest.mark.parametrize("kind", BACKENDS)
def test_placement_lists_every_node_and_declines_give_reasons(kind: str) -> None:
    backend = partial(*BACKENDS[kind])
    executable = place(backend, *bound(small_program()), ONE_THREAD, fallback=REFERENCE)
    nodes = {node.name: node for node in executable.program.trunk.nodes}
    declined = declined_nodes(executable)
    assert set(executable.placement) == set(nodes)
    for name, node in nodes.items():
        if "@" in name:  # made once more where it is taken
            assert node.op.kind == "Quantise"
        elif name not in declined:
            assert executable.placement[name] == "partial"
            assert node.op.kind in backend.kinds
        else:
            assert executable.placement[name] == "reference"
            if node.op.kind not in backend.kinds:
                assert declined[name] == f"{node.op.kind} is not written yet"
            else:
                assert "declined" in declined[name]


def test_the_parts_that_a_backend_supports_are_its_own() -> None:
    executable = placed("linear and norm")
    kinds = {n.op.kind for n in executable.program.trunk.nodes}
    mine = {
        n.op.kind
        for n in executable.program.trunk.nodes
        if executable.placement[n.name] == "partial"
    }
    assert mine == {"Linear", "RMSNorm"}
    assert "Attend" in kinds
    # q, k and v are computed in one run: what is ready is computed before parts alternate.
    assert len(executable.segments_of("trunk")) < 40


def test_a_slot_has_one_owner() -> None:
    declined = declined_nodes(placed("store without attend"))
    assert "shares the slot 'kv.0'" in declined["layers.0.attention.store"]


def test_weights_of_a_part_are_uploaded_once() -> None:
    backend = partial("Linear", "RMSNorm", "EmbedRows")
    place(backend, *bound(small_program()), ONE_THREAD, fallback=REFERENCE)
    assert len(backend.compiled) == 1


def test_a_backend_that_supports_everything_gets_the_program_as_it_is() -> None:
    backend = partial(*PRIMITIVE_KINDS, "Attention", "Linear")
    program, weights = bound(small_program())
    executable = place(backend, program, weights, ONE_THREAD, strict=True)
    assert set(executable.placement.values()) == {"partial"}
    assert not declined_nodes(executable)
    whole = partial(*{n.op.kind for n in program.trunk.nodes})
    place(whole, program, weights, ONE_THREAD)
    assert whole.compiled == [program]


def test_strict_names_the_declined_nodes_and_the_reasons() -> None:
    with pytest.raises(DeclinedError) as caught:
        place(partial("Linear"), *bound(small_program()), ONE_THREAD, strict=True)
    assert "partial declines" in str(caught.value)
    assert "layers.0.attention.attend: Attend is not written yet" in str(caught.value)


def test_what_the_fallback_declines_too_is_an_error() -> None:
    fallback = Partial(frozenset(PRIMITIVE_KINDS) - {"Attend"}, name="second")
    with pytest.raises(DeclinedError, match="second: Attend is not written yet"):
        place(partial("Linear"), *bound(small_program()), ONE_THREAD, fallback=fallback)


def test_an_answer_that_is_no_support_is_an_error() -> None:
    backend = partial()
    backend.supports = lambda node, graph, program: True
    with pytest.raises(BackendError, match="supports\\(\\) of the backend 'partial' returned True"):
        place(backend, *bound(small_program()), ONE_THREAD)


@pytest.mark.parametrize(
    "cuts", [[0], [999], ["layers.9"], ["embed"], [3, 3], [5, 2], [], [1, 2, 3]]
)
def test_impossible_cuts_are_errors(cuts: list) -> None:
    program, weights = bound(small_program())
    parts = 3 if len(cuts) == 2 else 2
    with pytest.raises(GraphError):
        place_split([(REFERENCE, ONE_THREAD)] * parts, program, weights, cuts)


def test_unknown_values_entries_and_sequences_are_errors() -> None:
    executable = split(["layers.2"])
    state = executable.open(CONTEXT)
    outcome = executable.forward(Batch([Row(state, 0, 1, (Named("nonsense"),))])).result().outcomes
    assert outcome[state].status is Status.DECLINED
    assert "no value 'nonsense'" in outcome[state].reason
    with pytest.raises(RequestError, match="no entry graph is named 'draft'"):
        executable.forward(Batch([Row(state, 0, 1)], "draft"))
    with pytest.raises(RequestError, match="cannot rewind"):
        state.rewind(1)
    with pytest.raises(BackendError, match="of another executable"):
        executable.forward(Batch([Row(split(["layers.2"]).open(8), 0, 1)]))
    other = executable.open(CONTEXT)
    with pytest.raises(BackendError, match="neighbours"):
        executable.forward(Batch([Row(state, 0, 1), Row(other, 0, 1), Row(state, 1, 1)]))
    other.release()
    with pytest.raises(BackendError, match="released"):
        executable.forward(Batch([Row(other, 0, 1)]))
    with pytest.raises(CortiqError, match="another model"):
        exported = replace(state.export(), slots={})
        executable.import_(exported, CONTEXT)
    assert state.length() == 0


def test_closing_closes_every_part() -> None:
    executable = split(["layers.2"])
    state = executable.open(CONTEXT)
    executable.close()
    assert all(not part.alive for part in state.parts)


def test_a_reader_waits_for_the_writer_of_its_slot() -> None:
    b = Builder(context=16)
    token, position = b.input("token"), b.input("position")
    x = b.add(Embedding(8, 4), token, name="x", weights={"table": "table"})
    x = b.add(Reshape((1, 4)), x, name="heads")
    slow = b.add(Scale(2.0), x, name="slow")  # computed elsewhere: the query is ready before it
    k, q = (b.add(Quantise(), v, name=n) for v, n in ((slow, "k"), (x, "q")))
    b.add_node(StoreKV(1, 4, 4), k, k, name="store", slots={"kv": "kv"})
    b.add(Attend(1, 1, 4, 4, 1.0), q, position, name="y", slots={"kv": "kv"})
    program = b.program(outputs=("y",))
    owners = {("trunk", n.name): int(n.name == "slow") for n in program.trunk.nodes}
    cut = partition(program, owners, 2)
    order = [n.name for segment in cut.segments["trunk"] for n in segment.graph.nodes]
    assert order.index("store") < order.index("y")
    assert [segment.part for segment in cut.segments["trunk"]] == [0, 1, 0]


def test_a_decomposition_into_a_taken_name_is_an_error() -> None:
    b = Builder(context=16)
    token, _ = b.input("token"), b.input("position")
    x = b.add(Embedding(8, 4), token, name="embed", weights={"table": "table"})
    x = b.add(Linear(4, 4), x, name="mix", weights={"weight": "w"})
    b.add(Scale(2.0), x, name="mix.matmul")
    program, weights = bound(b.program(outputs=("mix.matmul",)))
    with pytest.raises(GraphError, match=r"mix\.matmul: is named as a part"):
        place(partial("Scale"), program, weights, ONE_THREAD, fallback=REFERENCE)


def test_a_split_beside_a_shared_slot_moves_the_reader_to_the_writer() -> None:
    executable = split(["layers.3"])
    assert not declined_nodes(executable)
    assert len(executable.open(8).parts) == 2
    part_of = {n.name: r.part for r in executable.segments_of("trunk") for n in r.graph.nodes}
    assert part_of["layers.3.attention"] == part_of["layers.2.attention"] == 0
    assert part_of["layers.3.attended"] == 1


def test_decomposition_keeps_equal_nodes_that_are_outputs() -> None:
    b = Builder(context=16)
    token, _ = b.input("token"), b.input("position")
    x = b.add(Embedding(8, 4), token, name="embed", weights={"table": "table"})
    for name in ("first", "second"):
        b.add(Scale(2.0), x, name=name)
    program, weights = bound(b.program(outputs=("first", "second")))
    executable = REFERENCE.compile(program, weights, ONE_THREAD)
    wants = (Named("first"), Named("second"))
    (row,) = feed(executable, executable.open(8), [3], wants)
    assert same(row[wants[0]], row[wants[1]])


@pytest.mark.parametrize("call", ["supports", "compile"])
def test_what_a_backend_raises_names_it(call, monkeypatch) -> None:
    backend = type(REFERENCE)()

    def broken(*_):
        raise ValueError("oops")

    monkeypatch.setattr(backend, call, broken)
    program, weights = bound(small_program())
    with pytest.raises(BackendError, match="backend reference failed: ValueError: oops"):
        place(backend, program, weights)
