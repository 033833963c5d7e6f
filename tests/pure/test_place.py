"""Wherever its nodes are placed, a program gives the bits of the reference alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from cortiq_reference.backend import ReferenceBackend
from small_program import CONTEXT, VOCABULARY, bound, small_program

from cortiq.backend import (
    Argmax,
    Batch,
    CompileOptions,
    Declined,
    Device,
    Digest,
    Draw,
    Drawn,
    Executable,
    Named,
    Row,
    State,
    Status,
    Supported,
    Top,
    Versions,
)
from cortiq.errors import BackendError, CortiqError, DeclinedError, GraphError, RequestError
from cortiq.ir import primitives_of, verify
from cortiq.ir.ops import PRIMITIVES
from cortiq.numerics.sampling import Sampling
from cortiq.runtime.place import declined_nodes, place, place_split

ONE_THREAD = CompileOptions(threads=1, page_rows=8)
REFERENCE = ReferenceBackend()
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
PENALISED = Sampling(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.1, seed=7)
WANTS = (Digest(), Digest("hidden"), Argmax(), Draw(PENALISED), Top(3), Named("logits"))


class Renamed:
    """An executable of the reference that says another name."""

    def __init__(self, executable: Executable, name: str) -> None:
        self._executable = executable
        self.placement = dict.fromkeys(executable.placement, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)


@dataclass
class Partial:
    """A backend that computes only these kinds, with the reference's kernels."""

    kinds: frozenset[str]
    name: str = "partial"
    priority: int = 1
    versions: Versions = field(default_factory=Versions)
    compiled: list = field(default_factory=list)

    def devices(self) -> list[Device]:
        return [Device("one")]

    def supports(self, node, graph, program):
        for value in (*node.inputs, *node.outputs):
            assert value in graph.values  # a backend may look types up
        if node.op.kind in self.kinds:
            return Supported()
        return Declined(f"{node.op.kind} is not written yet")

    def compile(self, program, weights, options):
        verify(program)
        kinds = {n.op.kind for g in program.graphs.values() for n in g.nodes}
        assert kinds <= self.kinds
        assert set(weights) == set(program.weights)
        self.compiled.append(program)
        return Renamed(REFERENCE.compile(program, weights, options), self.name)


def partial(*kinds: str) -> Partial:
    return Partial(frozenset(kinds))


PRIMITIVE_KINDS = [op.__name__ for op in PRIMITIVES]
BACKENDS = {
    "linear and norm": ("Linear", "RMSNorm"),
    "attention layer": ("Attention", "Residual"),
    "matmul without quantise": ("MatMul", "RMSNorm"),
    "quantise without matmul": ("Quantise", "Add"),
    "store without attend": ("Quantise", "MatMul", "StoreKV"),
    "attend without store": ("Quantise", "MatMul", "Attend", "Rope"),
    "embedding only": ("EmbedRows",),
    "conv and route": ("CausalConv", "Route", "ExpertMatMul"),
    "nothing": (),
    "every other primitive": tuple(PRIMITIVE_KINDS[::2]),
    "the primitives between": tuple(PRIMITIVE_KINDS[1::2]),
}


def alone(**options: Any) -> Executable:
    return REFERENCE.compile(*bound(small_program(**options)), ONE_THREAD)


def placed(kind: str, **options: Any) -> Executable:
    backend = partial(*BACKENDS[kind])
    return place(backend, *bound(small_program(**options)), ONE_THREAD, fallback=REFERENCE)


def split(cuts: Sequence[int | str], **options: Any) -> Executable:
    program, weights = bound(small_program(**options))
    assignments = [
        (REFERENCE, replace(ONE_THREAD, page_rows=4 * (1 + i))) for i in range(len(cuts) + 1)
    ]
    return place_split(assignments, program, weights, cuts)


CHAINS = {
    **{kind: lambda kind=kind, **o: placed(kind, **o) for kind in BACKENDS},
    "in two": lambda **o: split(["layers.2.attention"], **o),
    "in three": lambda **o: split(["layers.0.mlp", "layers.3"], **o),
    "beside a shared slot": lambda **o: split(["layers.3"], **o),
    "at every node": lambda **o: split(list(range(1, len(small_program(**o).trunk.nodes))), **o),
}
every_chain = pytest.mark.parametrize("kind", CHAINS)


def rows(state: State, ids: Sequence, wants: tuple = WANTS, **inputs: Any) -> list[Row]:
    start = state.length()
    return [Row(state, start + i, t, wants, **inputs) for i, t in enumerate(ids)]


def feed(executable: Executable, state: State, ids: Sequence, wants: tuple = WANTS) -> list[dict]:
    result = executable.forward(Batch(rows(state, ids, wants))).result()
    assert result.outcomes[state].status is Status.COMPLETED, result.outcomes[state]
    return [dict(row) for row in result.rows]


def same(a: Any, b: Any) -> bool:
    """Whether answers are equal, bit for bit."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def expected() -> list[dict]:
    """What the reference alone answers for every row of IDS."""
    executable = alone()
    answers = feed(executable, executable.open(CONTEXT), IDS)
    assert len({row[Digest()] for row in answers}) == len(IDS)
    assert all(np.abs(row[Named("logits")]).max() > 0.1 for row in answers)
    return answers


@every_chain
def test_in_chunks_of_any_size(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    for size in (1, 4, len(IDS)):
        state = executable.open(CONTEXT)
        chunks = [IDS[i : i + size] for i in range(0, len(IDS), size)]
        assert same([r for c in chunks for r in feed(executable, state, c)], expected)


@every_chain
def test_rows_that_want_nothing_change_nothing(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    state = executable.open(CONTEXT)
    assert feed(executable, state, IDS[:-1], ()) == [{}] * (len(IDS) - 1)
    assert same(feed(executable, state, IDS[-1:]), expected[-1:])


@every_chain
def test_in_a_batch_of_others(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    first, second, third = (executable.open(CONTEXT) for _ in range(3))
    feed(executable, third, [8, 8, 8])
    batch = Batch([*rows(first, IDS), *rows(third, [1, 2]), *rows(second, IDS[:5])])
    result = executable.forward(batch).result()
    assert {o.status for o in result.outcomes.values()} == {Status.COMPLETED}
    assert same(list(result.rows[: len(IDS)]), expected)
    assert same(list(result.rows[len(IDS) + 2 :]), expected[:5])


@every_chain
def test_rewind_is_never_having_gone_ahead(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    state = executable.open(CONTEXT)
    feed(executable, state, [*IDS[:6], 40, 41, 42])
    assert state.rewind(6) == state.length() == 6
    assert same(feed(executable, state, IDS[6:]), expected[6:])


@every_chain
def test_snapshot_and_restore(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    state = executable.open(CONTEXT)
    feed(executable, state, IDS[:6])
    snapshot = state.snapshot()
    for _ in range(2):
        feed(executable, state, [40, 41, 42])
        state.restore(snapshot)
        assert state.length() == 6
    assert same(feed(executable, state, IDS[6:]), expected[6:])


@every_chain
def test_a_fork_is_separate(kind: str, expected: list[dict]) -> None:
    executable = CHAINS[kind]()
    state = executable.open(CONTEXT)
    feed(executable, state, IDS[:9])
    fork, earlier = state.fork(), state.fork(4)
    assert (fork.length(), earlier.length()) == (9, 4)
    feed(executable, fork, [40, 41])
    assert same(feed(executable, earlier, IDS[4:]), expected[4:])
    earlier.release()
    assert same(feed(executable, state, IDS[9:]), expected[9:])


@every_chain
def test_a_sequence_moves_between_executables(kind: str, expected: list[dict]) -> None:
    chain, whole = CHAINS[kind](), alone()
    for source, target in ((chain, whole), (whole, chain), (chain, CHAINS[kind]())):
        state = source.open(CONTEXT)
        feed(source, state, IDS[:7])
        exported = state.export()
        assert exported.lengths == {"trunk": 7}
        assert exported.tokens.tolist() == IDS[:7]
        moved = target.import_(exported, CONTEXT)
        assert same(feed(target, moved, IDS[7:]), expected[7:])


@every_chain
def test_exports_are_those_of_the_whole(kind: str) -> None:
    chain, whole = CHAINS[kind](), alone()
    ours, theirs = chain.open(CONTEXT), whole.open(CONTEXT)
    feed(chain, ours, IDS)
    feed(whole, theirs, IDS)
    slots, wanted = ours.export().slots, theirs.export().slots
    assert set(slots) == set(wanted)
    for name, rows_ in wanted.items():
        planes = vars(rows_) if hasattr(rows_, "key_high") else {"": rows_}
        other = vars(slots[name]) if hasattr(rows_, "key_high") else {"": slots[name]}
        assert all(same(planes[k], other[k]) for k in planes), name


@every_chain
@pytest.mark.parametrize("want", [Argmax(), Draw(PENALISED)])
def test_chained_draws_are_those_driven_from_the_host(kind: str, want: Any) -> None:
    chain, whole = CHAINS[kind](), alone()
    state, other = whole.open(CONTEXT), chain.open(CONTEXT)
    token = feed(whole, state, IDS, (want,))[-1][want]
    driven = []
    for _ in range(4):
        driven.append(token)
        token = feed(whole, state, [token], (want,))[0][want]
    tickets = [chain.forward(Batch(rows(other, IDS, (want,))))]
    for last in (len(IDS) - 1, 0, 0):
        tickets.append(chain.forward(Batch(rows(other, [Drawn(last)], (want,)))))
    assert [ticket.result().rows[-1][want] for ticket in tickets] == driven


@every_chain
def test_an_embedding_can_be_given(kind: str, expected: list[dict]) -> None:
    chain, whole = CHAINS[kind](), alone()
    probe = whole.open(CONTEXT)
    given = feed(whole, probe, [17], (Named("embed"),))[0][Named("embed")]
    answers = []
    for executable in (chain, whole):
        state = executable.open(CONTEXT)
        feed(executable, state, IDS[:3])
        row = Row(state, 3, IDS[3], WANTS, {"embed": given})
        answers.append(executable.forward(Batch([row])).result().rows[0])
    assert same(*map(dict, answers))
    assert not same(dict(answers[0]), expected[3])


@every_chain
def test_a_second_entry_graph(kind: str) -> None:
    answers = []
    for executable in (CHAINS[kind](head=True), alone(head=True)):
        state = executable.open(CONTEXT)
        hidden = Named("hidden")
        trunk = feed(executable, state, IDS, (hidden, Digest()))
        drafts = [
            Row(state, i, IDS[i], (Digest(), Argmax()), {"hidden": trunk[i][hidden]})
            for i in range(8)
        ]
        first = executable.forward(Batch(drafts, "draft")).result().rows
        assert (state.length(), state.length("draft")) == (len(IDS), 8)
        assert state.rewind(5, "draft") == 5
        again = executable.forward(Batch(drafts[5:], "draft")).result().rows
        assert same(list(map(dict, again)), list(map(dict, first[5:])))
        answers.append([*map(dict, first), *feed(executable, state, [1, 2])])
    assert same(*answers)


def poisoned(state: State, width: int = 32) -> Row:
    return Row(state, state.length(), 1, WANTS, {"embed": np.full(width, np.inf, np.float32)})


@every_chain
def test_a_failing_sequence_is_cleared_and_concerns_no_other(
    kind: str, expected: list[dict]
) -> None:
    executable = CHAINS[kind]()
    good, bad, late = (executable.open(CONTEXT) for _ in range(3))
    feed(executable, bad, IDS)
    batch = Batch([*rows(good, IDS[:5]), poisoned(bad), *rows(late, IDS)])
    result = executable.forward(batch).result()
    assert result.outcomes[bad].status is Status.FAILED
    assert result.outcomes[bad].reason
    assert result.rows[5] == {}
    assert same([dict(r) for r in (*result.rows[:5], *result.rows[6:])], expected[:5] + expected)
    assert bad.length() == 0
    assert same(feed(executable, bad, IDS), expected)
    assert same(feed(executable, good, IDS[5:]), expected[5:])


@every_chain
def test_what_cannot_be_done_is_declined_before_anything_moves(
    kind: str, expected: list[dict]
) -> None:
    executable = CHAINS[kind]()
    state, other = executable.open(len(IDS)), executable.open(CONTEXT)
    feed(executable, state, IDS[:5])
    refused = [
        [Row(state, 6, 1)],
        [Row(state, 5, 1), Row(state, 7, 1)],
        [Row(state, 5, VOCABULARY)],
        [Row(state, 5, Drawn(99))],
        [Row(state, 5 + i, 1) for i in range(11)],
    ]
    for bad in refused:
        batch = Batch([*bad, *rows(other, [IDS[other.length()]])])
        result = executable.forward(batch).result()
        assert result.outcomes[state].status is Status.DECLINED
        assert result.outcomes[other].status is Status.COMPLETED
        assert result.rows[0] == {}
        assert same(dict(result.rows[-1]), expected[other.length() - 1])
        assert state.length() == 5
    assert same(feed(executable, state, IDS[5:]), expected[5:])


@every_chain
def test_memory_is_reserved_in_all_parts_or_declined(kind: str) -> None:
    executable = CHAINS[kind]()
    assert executable.state_bytes(64) >= alone().state_bytes(64)
    state = executable.open(64)
    assert state.limit == 64
    assert state.reserve(64)
    assert not state.reserve(65)
    assert executable.free_bytes() > 0


def test_a_memory_limit_is_kept_and_shared() -> None:
    program, weights = bound(small_program(convolution=False))
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
    assert set(executable.placement) >= set(nodes)
    for name, node in nodes.items():
        if name not in declined:
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
    assert len(executable.runs_of("trunk")) < 40


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
    fallback = Partial(frozenset(PRIMITIVE_KINDS) - {"Attend"}, "second")
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
    with pytest.raises(RequestError, match="no value 'nonsense'"):
        executable.forward(Batch([Row(state, 0, 1, (Named("nonsense"),))]))
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
    # An imported ring keeps no rows to go back to.
    state = executable.import_(state.export(), CONTEXT)
    backend.fault = "declines"
    feed_rows = rows(state, IDS[5:])
    result = executable.forward(Batch(feed_rows)).result()
    assert result.outcomes[state].status in (Status.DECLINED, Status.FAILED)
    expected_length = 5 if result.outcomes[state].status is Status.DECLINED else 0
    assert state.lengths("trunk") == [expected_length] * 2


def test_an_exception_leaves_the_sequence_as_it_was() -> None:
    backend, executable, state = late_fault(convolution=False)
    wanted = feed(executable, state.fork(), IDS[5:])
    backend.fault = "raises"
    with pytest.raises(OSError, match="the device is gone"):
        executable.forward(Batch(rows(state, IDS[5:])))
    assert state.lengths("trunk") == [5, 5]
    backend.fault = ""
    assert same(feed(executable, state, IDS[5:]), wanted)


def test_closing_closes_every_part() -> None:
    executable = split(["layers.2"])
    state = executable.open(CONTEXT)
    executable.close()
    assert all(not part.alive for part in state.parts)


def test_every_part_is_a_sound_program() -> None:
    program, _ = bound(small_program(head=True))
    assert verify(primitives_of(program)) is None
