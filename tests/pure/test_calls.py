"""Calls that must not change a bit of what comes later: wants, given rows, declines, room, detours.

As in `test_bitwise`, programs are random; the last test mixes all calls at random.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import (
    CONTEXT,
    VOCABULARY,
    Bound,
    Writer,
    bind,
    examples,
    ids,
    overflowing,
    programs,
    random_ids,
)
from hypothesis import given
from hypothesis import strategies as st
from sequences import WANTS, alone, completed, feed, forward, in_chunks, rows, same
from walk import CALLS, Walk, calls

from cortiq.backend import (
    CompileOptions,
    Digest,
    Draw,
    Drawn,
    Executable,
    ExportedState,
    KVPlanes,
    Named,
    Row,
    State,
    Status,
    Top,
)
from cortiq.errors import BackendError, CortiqError, FormatError, RequestError
from cortiq.ir.layers import Attention, GatedMLP, RMSNorm, ShortConv
from cortiq.numerics.contract import OutOfDomainError
from cortiq.numerics.dequantise import embedding_rows
from cortiq.numerics.layouts import Weight
from cortiq.numerics.rope import RopeTable
from cortiq.numerics.sampling import Sampling
from cortiq.placement.place import place_split
from cortiq_conformance.faults.backend import FaultyBackend
from cortiq_reference.backend import ReferenceBackend

REFERENCE = ReferenceBackend()
ONE_THREAD = CompileOptions(threads=1)
PROMPTS = ids(st.integers(65, 100))


def compiled(bound: Bound, **options: Any) -> Executable:
    return REFERENCE.compile(bound.program, bound.weights, replace(ONE_THREAD, **options))


def in_two(bound: Bound) -> Executable:
    """Cut in the middle, as a chain of two executables."""
    cut = len(bound.program.trunk.nodes) // 2
    parts = [(REFERENCE, ONE_THREAD)] * 2
    return place_split(parts, bound.program, bound.weights, [cut])


def plain(convolution: bool = True, palette: tuple[str, ...] = ("w8",), seed: int = 0) -> Bound:
    """A fixed small program: attention, a convolution if asked for, an MLP."""
    writer = Writer(32, RMSNorm)
    x = writer.start(1.0)
    attention = Attention(32, 4, 2, 8, rope=RopeTable(1e4, 8))
    x = writer.branch(x, attention, "layers.0.mixer")
    if convolution:
        x = writer.branch(x, ShortConv(32, 3), "layers.1.mixer")
    x = writer.branch(x, GatedMLP(32, 48), "layers.1.ffn")
    return bind(writer.finish(x, tied=False, cap=None), list(palette), seed)


@examples(5)
@given(programs(), PROMPTS, st.data())
def test_wants_change_nothing(bound, prompt, data):
    """Any named value of the graph can be asked for, in any rows, and the rest stays the same."""
    executable, values = compiled(bound), bound.program.trunk.values
    expected, left = alone(executable, prompt)
    names = data.draw(st.lists(st.sampled_from(sorted(values)), min_size=1, max_size=4))
    extra = (*map(Named, names), *map(Digest, [n for n in names if n not in ("token", "position")]))
    asked = set(data.draw(st.lists(st.sampled_from(range(len(prompt))), max_size=5)))
    state, quiet = executable.open(CONTEXT), executable.open(CONTEXT)
    group = rows(state, prompt)
    group = [replace(r, wants=(*extra, *WANTS) if i in asked else WANTS)
             for i, r in enumerate(group)]  # fmt: skip
    answers = completed(executable, group)
    assert same([{want: row[want] for want in WANTS} for row in answers], expected)
    assert feed(executable, quiet, prompt, ()) == [{}] * len(prompt)
    assert same(quiet.export(), left)
    for index in asked:
        alone_asked = feed_one_want_at_a_time(executable, prompt[: index + 1], extra)
        assert same({w: answers[index][w] for w in extra}, alone_asked)
        for name in names:
            value = np.asarray(answers[index][Named(name)])
            assert value.shape == values[name].shape


def feed_one_want_at_a_time(executable: Executable, prompt: list[int], wants: tuple) -> dict:
    answers = {}
    for want in wants:
        state = executable.open(CONTEXT)
        feed(executable, state, prompt[:-1], ())
        answers |= feed(executable, state, prompt[-1:], (want,))[0]
    return answers


@examples(5)
@given(programs(), PROMPTS, st.booleans())
def test_what_a_sequence_does_not_want_cannot_fail_it(bound, prompt, together):
    """Logits that overflow fail who wants them, not who shares a batch with somebody who does."""
    executable = compiled(bound)
    state, other = executable.open(CONTEXT), executable.open(CONTEXT)
    large = {"hidden": overflowing(bound, "hidden")}
    quiet = [replace(row, inputs=large) for row in rows(state, prompt, [Digest("hidden")])]
    if together:
        quiet[3] = replace(quiet[3], wants=(Digest(),))
    result = forward(executable, quiet, rows(other, prompt))
    assert result.outcomes[state].status is (Status.FAILED if together else Status.COMPLETED)
    assert result.outcomes[other].status is Status.COMPLETED
    assert same([dict(r) for r in result.rows[len(prompt) :]], alone(executable, prompt)[0])


@examples(5)
@given(programs(), PROMPTS, st.integers(1, 70))
def test_rows_given_are_rows_looked_up(bound, prompt, size):
    executable = compiled(bound)
    wants = (*WANTS, Named("embed"))
    expected, left = alone(executable, prompt, wants)
    state = executable.open(CONTEXT)
    answers = []
    for start in range(0, len(prompt), size):
        group = rows(state, prompt[start : start + size], wants)
        group = [
            replace(row, inputs={"embed": expected[row.position][Named("embed")]} if i % 3 else {})
            for i, row in enumerate(group)
        ]
        answers += completed(executable, group)
    assert same(answers, expected)
    assert same(state.export(), left)


@examples(5)
@given(programs(), PROMPTS, ids(st.integers(1, 70)), st.data())
def test_a_value_given_replaces_that_value_only(bound, prompt, ahead, data):
    """Replacing a value by what it is anyway changes nothing, whatever the value is."""
    executable, trunk = compiled(bound), bound.program.trunk
    name = data.draw(st.sampled_from([n for node in trunk.nodes for n in node.outputs]))
    expected, left = alone(executable, prompt, (*WANTS, Named(name)))
    state = executable.open(CONTEXT)
    group = rows(state, prompt, (*WANTS, Named(name)))
    group = [replace(r, inputs={name: e[Named(name)]})
             for r, e in zip(group, expected, strict=True)]  # fmt: skip
    assert same(completed(executable, group), expected)
    assert same(state.export(), left)


@examples(5)
@given(programs(), PROMPTS, st.integers(1, 100), ids(st.integers(1, 60)))
def test_memory_that_was_not_written_is_not_read(bound, prompt, page_rows, ahead):
    clean = compiled(bound)
    poisoned = compiled(bound, extra={"poison": True}, page_rows=page_rows)
    expected, left = alone(clean, prompt)
    state = poisoned.open(CONTEXT)
    assert state.reserve(CONTEXT)
    feed(poisoned, state, [*prompt[:40], *ahead])
    state.rewind(40)
    assert same(in_chunks(poisoned, state, prompt[40:], [9]), expected[40:])
    assert same(state.export(), left)


REFUSALS = {
    "a gap": lambda s, w: [Row(s, s.length() + 1, 1)],
    "a position again": lambda s, w: [Row(s, s.length() - 1, 1)],
    "a gap inside": lambda s, w: [Row(s, s.length(), 1), Row(s, s.length() + 2, 1)],
    "beyond the limit": lambda s, w: rows(s, [1] * (s.limit - s.length() + 1)),
    "an id that is too large": lambda s, w: rows(s, [1, VOCABULARY, 1]),
    "a negative id": lambda s, w: rows(s, [1, -1]),
    "a row that was not drawn": lambda s, w: rows(s, [Drawn(999)]),
    "a negative row": lambda s, w: rows(s, [Drawn(-1)]),
    "a given row of another width": lambda s, w: given_row(s, "embed", np.zeros(w + 1)),
    "a given value that is not in the graph": lambda s, w: given_row(s, "nonsense", np.zeros(w)),
    "an unknown value": lambda s, w: rows(s, [1], [Named("nonsense")]),
    "a digest of an unknown value": lambda s, w: rows(s, [1], [Digest("nonsense")]),
    "a digest of an integer": lambda s, w: rows(s, [1], [Digest("position")]),
    "a mask without a token": lambda s, w: rows(s, [1], [Draw(Sampling(), mask=bytes(8))]),
    "a mask of two bytes": lambda s, w: rows(s, [1], [Draw(Sampling(), mask=b"\xff\xff")]),
    "more of the top than there is": lambda s, w: rows(s, [1], [Top(VOCABULARY + 1)]),
    "a bias on an unknown id": lambda s, w: rows(s, [1], [Draw(UNKNOWN_ID)]),
}
UNKNOWN_ID = Sampling(logit_bias={VOCABULARY: 1.0})


def given_row(state: State, name: str, value: np.ndarray) -> list[Row]:
    return [replace(rows(state, [1])[0], inputs={name: value.astype(np.float32)})]


@pytest.mark.parametrize("kind", REFUSALS)
@examples(3)
@given(programs(), PROMPTS, st.booleans())
def test_what_is_declined_moves_nothing(kind, bound, prompt, chained):
    executable = in_two(bound) if chained else compiled(bound)
    expected, left = alone(executable, prompt)
    state, other = executable.open(len(prompt)), executable.open(len(prompt))
    feed(executable, state, prompt[:30])
    before, free = state.export(), executable.free_bytes
    width = bound.program.trunk.values["embed"].shape[0]
    refused = REFUSALS[kind](state, width)
    result = forward(executable, refused, rows(other, prompt))
    assert result.outcomes[state].status is Status.DECLINED, kind
    assert result.outcomes[state].reason
    assert list(result.rows[: len(refused)]) == [{}] * len(refused)
    assert same([dict(row) for row in result.rows[len(refused) :]], expected)
    assert same(state.export(), before)
    assert same(feed(executable, state, prompt[30:]), expected[30:])
    assert same(state.export(), left)
    assert free() > 0


def test_other_entries_and_other_executables_sequences_are_errors():
    executable, other = compiled(plain()), compiled(plain(convolution=False))
    mine, theirs = executable.open(8), other.open(8)
    with pytest.raises(RequestError, match="draft"):
        forward(executable, rows(mine, [1]), entry="draft")
    with pytest.raises(BackendError):
        forward(executable, rows(mine, [1]), rows(theirs, [1]))
    assert (mine.length(), theirs.length()) == (0, 0)


def tight(rows_: int, convolution: bool = True) -> Executable:
    """An executable whose memory holds this many rows of sequences, in pages of 16."""
    bound = plain(convolution)
    need = compiled(bound, page_rows=16).state_bytes(rows_)
    return compiled(bound, page_rows=16, memory_limit=need)


def test_room_is_reserved_wholly_or_not_at_all():
    executable = tight(64)
    whole = executable.free_bytes()
    state, other = executable.open(CONTEXT), executable.open(CONTEXT)
    assert not state.reserve(65)
    assert executable.free_bytes() == whole
    assert state.reserve(48)
    assert not other.reserve(17)
    assert executable.free_bytes() == executable.state_bytes(16)
    assert other.reserve(16)
    assert executable.free_bytes() == 0
    prompt = random_ids(48, 0)
    expected, left = alone(compiled(plain()), prompt)
    assert same(in_chunks(executable, state, prompt, [11]), expected)
    assert same(state.export(), left)
    assert forward(executable, rows(state, [1])).outcomes[state].status is Status.DECLINED
    other.release()
    assert forward(executable, rows(state, [1])).outcomes[state].status is Status.COMPLETED
    state.release()
    assert executable.free_bytes() == whole


def test_sequences_of_one_batch_share_the_memory():
    executable = tight(64)
    states = [executable.open(CONTEXT) for _ in range(3)]
    prompt = random_ids(32, 2)
    result = forward(executable, *(rows(state, prompt) for state in states))
    assert [result.outcomes[s].status.value for s in states] == [
        "completed", "completed", "declined"]  # fmt: skip
    assert executable.free_bytes() == 0
    assert states[2].length() == 0


@pytest.mark.parametrize("length", [-1, 21])
def test_a_fork_at_an_impossible_length_leaves_nothing_behind(length):
    executable = tight(64)
    state = executable.open(CONTEXT)
    feed(executable, state, random_ids(20, 3))
    free = executable.free_bytes()
    with pytest.raises(RequestError):
        state.fork(length)
    assert executable.free_bytes() == free
    assert state.length() == 20


def broken_exports(exported: ExportedState) -> dict[str, ExportedState]:
    name, planes = next((n, s) for n, s in exported.slots.items() if isinstance(s, KVPlanes))
    ring = next((n for n, s in exported.slots.items() if not isinstance(s, KVPlanes)), "")

    def with_planes(**changed: np.ndarray) -> ExportedState:
        return replace(exported, slots={**exported.slots, name: replace(planes, **changed)})

    nan = np.full_like(exported.slots[ring], np.nan)
    ones = np.ones_like(planes.key_high)
    return {
        "missing slot": replace(exported, slots={name: planes}),
        "fewer rows": with_planes(key_high=planes.key_high[:-1]),
        "fewer exponents": with_planes(value_exponent=planes.value_exponent[:-1]),
        "an exponent of 2^50 and more": with_planes(key_exponent=planes.key_exponent * 0 + 37),
        "an exponent below 2^-40": with_planes(value_exponent=planes.value_exponent * 0 - 55),
        "an integer that no row has": with_planes(key_high=ones * 127, key_low=ones * 127),
        "NaN in a ring": replace(exported, slots={**exported.slots, ring: nan}),
        "fewer ids": replace(exported, tokens=exported.tokens[:-1]),
        "an id out of range": replace(exported, tokens=exported.tokens * 0 + VOCABULARY),
        "another length": replace(exported, lengths={"trunk": 19}),
        "an unknown entry": replace(exported, lengths={"trunk": 20, "draft": 3}),
        "no length": replace(exported, lengths={}),
    }


BROKEN = (
    "missing slot", "fewer rows", "fewer exponents", "an exponent of 2^50 and more",
    "an exponent below 2^-40", "an integer that no row has", "NaN in a ring", "fewer ids",
    "an id out of range", "another length", "an unknown entry", "no length",
)  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("chained", [False, True])
def test_a_state_that_cannot_be_is_not_imported(kind, chained):
    home = tight(64)
    executable = in_two(plain()) if chained else home
    state = home.open(CONTEXT)
    feed(home, state, random_ids(20, 4))
    free = executable.free_bytes()
    with pytest.raises(RequestError):
        executable.import_(broken_exports(state.export())[kind], CONTEXT)
    assert chained or executable.free_bytes() == free


def test_imports_keep_to_the_limits():
    executable = tight(64)
    state = executable.open(CONTEXT)
    feed(executable, state, random_ids(40, 5))
    with pytest.raises(RequestError):
        executable.import_(state.export(), 39)
    with pytest.raises(CortiqError):
        executable.import_(state.export(), 64)
    state.rewind(0)
    assert executable.free_bytes() >= 0


@pytest.mark.parametrize("damaged", ["value", "scale"])
@pytest.mark.parametrize("layout", ["f32", "w8", "w16", "Q8_0"])
def test_a_damaged_row_of_the_table_fails_the_sequence_that_looks_it_up(layout, damaged):
    bound = plain(palette=(layout,))
    table = broken_row(bound.weights["embed"], damaged)
    executable = compiled(replace(bound, weights={**bound.weights, "embed": table}))
    with pytest.raises((OutOfDomainError, FormatError)):
        embedding_rows(table, np.array([60]))
    good, bad = executable.open(8), executable.open(8)
    expected, _ = alone(executable, [1, 2, 3])
    result = forward(executable, rows(bad, [4, 60, 5]), rows(good, [1, 2, 3]))
    assert result.outcomes[bad].status is Status.FAILED
    assert same([dict(row) for row in result.rows[3:]], expected)
    assert same(feed(executable, bad, [1, 2, 3]), expected)


def broken_row(table: Weight, damaged: str) -> Weight:
    """The table with a row 60 whose values overflow (`value`) or whose scale is no number."""
    parts = {name: part.copy() for name, part in table.parts.items()}
    if "scale" in parts:
        parts["scale"][60] = np.nan if damaged == "scale" else 2.0**49.5
    elif table.layout.block:
        scale = np.float16(np.nan if damaged == "scale" else np.inf)
        parts["raw"][60, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    else:
        value = np.float32(np.nan if damaged == "scale" else 2.0**50)
        parts["raw"][60, :4] = np.frombuffer(value.tobytes(), np.uint8)
    return replace(table, parts=parts)


@examples(6)
@given(programs(blocks=(1, 2)), calls(), st.integers(0, 2**20))
def test_after_any_calls_a_sequence_is_what_its_ids_make_it(bound, calls, seed):
    poisoned = compiled(bound, page_rows=16, extra={"poison": True})
    Walk([poisoned, compiled(bound, page_rows=7)], compiled(bound), seed).take(calls)


FOUND = (
    "a stale row after rewind", "a fork that shares its parent's tail",
    "a tile counted from the chunk's start", "a row that sees its batch neighbour",
    "a position-independent random key", "reordered canonical_sum",
)  # fmt: skip


@pytest.mark.parametrize("fault", FOUND)
def test_the_walk_finds_planted_faults(fault):
    bound, wrong = plain(), FaultyBackend(fault)
    homes = [wrong.compile(bound.program, bound.weights, ONE_THREAD) for _ in range(2)]
    walks = [Walk(homes, compiled(bound), seed) for seed in range(8)]
    assert not all(holds(walk, seed) for seed, walk in enumerate(walks))


def holds(walk: Walk, seed: int) -> bool:
    """Whether a walk of 20 calls ends with every sequence as it should be."""
    draw = np.random.default_rng(seed)
    try:
        walk.take([(str(draw.choice(CALLS)), int(draw.integers(10)), float(draw.random()))
                   for _ in range(20)])  # fmt: skip
    except AssertionError:
        return False
    return True
