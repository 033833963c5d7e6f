"""Rows behind attention windows are given up, on every backend, and nothing else changes."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from engines import Scripted, backends, engine, facts, prompt, request, speculation
from engines import alone as alone_in_engine
from graphs import examples
from hypothesis import given
from hypothesis import strategies as st
from sequences import alone, feed, forward, rows, same

from cortiq.backend import CompileOptions, Digest, Draw, KVPlanes, Row, Status, check_exported
from cortiq.backend.windows import (
    PIECE_ROWS,
    ROLLBACK_ROWS,
    Extent,
    first_seen,
    kept_from,
    most_rows,
    windows_of,
)
from cortiq.errors import RequestError
from cortiq.ir import Builder, ops
from cortiq.models import load_program
from cortiq.models.synthetic import open_synthetic
from cortiq.numerics.sampling import Sampling
from cortiq.placement.place import place_split

MODELS = ("tiny-gemma3", "tiny-mimo")
WANTS = (Digest(), Draw(Sampling(temperature=0.9, frequency_penalty=0.2, seed=3)))
CONTEXT = 2048
LONG = 480
"""Rows of a text whose first tiles are given up several times."""
LONGEST = {"cpu": 1500}
"""Rows of the longest texts; what is slow has `LONG` of them."""


@cache
def loaded(model):
    return load_program(open_synthetic(f"synthetic:{model}?seed=1&format=w8"), context=CONTEXT)


def every_backend():
    found = dict(backends())
    try:
        from cortiq_torch.backend import TorchBackend

        found["torch"] = TorchBackend
    except ImportError:
        pass
    return found


EVERYWHERE = [
    (name, model)
    for name in every_backend()
    for model in MODELS
    if name == "cpu" or model == MODELS[name == "torch"]
]


@cache
def compiled(backend, model, page_rows=64, poison=True, **options):
    known = loaded(model)
    chosen = CompileOptions(
        threads=1, page_rows=page_rows, extra={"poison": True} if poison else {}, **options
    )
    return every_backend()[backend]().compile(known.program, known.weights, chosen)


@cache
def text(model, seed=1, length=LONG):
    vocabulary = loaded(model).program.facts["vocab_size"]
    return [token % vocabulary for token in prompt(seed, length)]


FASTEST = "cpu" if "cpu" in backends() else "reference"


@cache
def whole(model, seed=1, length=LONG):
    """Answers and state of an executable that keeps all rows."""
    return alone(compiled(FASTEST, model, full_windows=True), text(model, seed, length), WANTS)


LENGTHS, WINDOWS = st.integers(0, 5000), st.integers(1, 3000)


@examples(300)
@given(LENGTHS, WINDOWS, st.integers(0, ROLLBACK_ROWS))
def test_what_is_kept_reaches_as_far_back_as_is_promised_and_fits(length, window, back):
    kept = kept_from(length, window)
    assert kept % 64 == 0
    assert kept <= first_seen(max(0, length - back), window)
    assert length + PIECE_ROWS - kept <= most_rows(window) or length < most_rows(window)
    assert kept + 64 > length - ROLLBACK_ROWS - window + 1


def attending(*readers, other=()):
    """A program whose rows are read by these windows, in the graph that stores them and beside."""
    b = Builder(context=64)
    for entry, windows in (("trunk", readers), ("head", other)):
        b.input("token")
        position = b.input("position")
        q = b.add(ops.Quantise(), b.input("q", (2, 8), "f32"), name="q16")
        if entry == "trunk":
            b.add_node(ops.StoreKV(2, 8, 8), q, q, name="store", slots={"kv": "kv"})
        for n, window in enumerate(windows):
            op = ops.Attend(2, 2, 8, 8, 1.0, window)
            b.add(op, q, position, name=f"a{n}", slots={"kv": "kv"})
        b.graph(entry, ())
    return b.program()


@pytest.mark.parametrize(
    ("readers", "other", "expected"),
    [
        ((5,), (), {"kv": 5}),
        ((5, 9, 2), (), {"kv": 9}),
        ((5, None), (), {}),
        ((5,), (5,), {}),
        ((), (5,), {}),
    ],
)
def test_a_slot_has_the_widest_window_of_its_readers(readers, other, expected):
    assert windows_of(attending(*readers, other=other)) == expected


@pytest.mark.parametrize(("backend", "model"), EVERYWHERE)
@pytest.mark.parametrize("page_rows", [64, 192])
def test_a_long_text_in_any_chunks_has_the_same_bits(backend, model, page_rows):
    on, ids = compiled(backend, model, page_rows), text(model)
    state, answers, chance = on.open(CONTEXT), [], random.Random(page_rows)
    while len(answers) < len(ids):
        start = len(answers)
        answers += feed(on, state, ids[start : start + chance.choice([1, 5, 64, 200])], WANTS)
    expected, left = whole(model)
    assert same(answers, expected)
    exported = state.export()
    for name, planes in exported.slots.items():
        assert planes.base(LONG) == kept_from(LONG, on.windows.get(name))
        assert same(planes, left.slots[name].last(len(planes.key_high)))
    assert set(on.windows) == {n for n, p in exported.slots.items() if p.base(LONG)}
    state.release()


@pytest.mark.parametrize(("backend", "model"), EVERYWHERE)
def test_more_rows_than_there_is_memory_for_pass_in_one_batch(backend, model):
    """`reserve` counts windowed slots as they will be, and one batch of everything keeps to it."""
    need = compiled(backend, model).state_bytes(LONG)
    on = compiled(backend, model, memory_limit=need)
    assert need < compiled(backend, model, full_windows=True).state_bytes(LONG)
    state = on.open(CONTEXT)
    assert state.reserve(LONG)
    assert feed(on, state, text(model), WANTS) == whole(model)[0]
    assert on.free_bytes() == 0
    state.release()
    assert on.free_bytes() == need


@pytest.mark.parametrize(("backend", "model"), EVERYWHERE)
def test_a_sequence_goes_back_as_far_as_it_says_and_else_begins_again(backend, model):
    on, ids = compiled(backend, model), text(model)
    expected, _ = whole(model)
    state = on.open(CONTEXT)
    feed(on, state, ids, ())
    for back in (1, 30, ROLLBACK_ROWS):
        assert state.rewind(LONG - back) == LONG - back
        assert same(feed(on, state, ids[LONG - back :], WANTS), expected[-back:])
    lost = max(kept_from(LONG, window) + window - 2 for window in on.windows.values())
    with pytest.raises(RequestError, match="forked"):
        state.fork(lost)
    child = state.fork(lost + 1)
    assert same(feed(on, child, ids[lost + 1 :], WANTS), expected[lost + 1 :])
    snapshot = state.snapshot()
    assert state.rewind(lost) == 0
    assert same(feed(on, state, ids[:200], WANTS), expected[:200])
    state.restore(snapshot)
    feed(on, state, [1, 2], ())
    assert state.rewind(LONG - 9) == LONG - 9
    assert same(feed(on, state, ids[-9:], WANTS), expected[-9:])
    state.release(), child.release()


@pytest.mark.parametrize("model", MODELS)
def test_a_sequence_moves_between_backends_in_the_middle_of_its_text(model):
    """From each backend to the next, with and without what is behind the windows."""
    ids, (expected, left) = text(model), whole(model)
    places = [(name, full) for name in every_backend() for full in (False, True)]
    state = compiled(FASTEST, model).open(CONTEXT)
    feed(compiled(FASTEST, model), state, ids[:250], ())
    start, step = 250, (LONG - 250) // len(places)
    for index, (name, full) in enumerate(places):
        on = compiled(name, model, 64 + 64 * (index % 2), full_windows=full)
        moved = on.import_(state.export(), CONTEXT)
        state.release()
        state, stop = moved, LONG if index == len(places) - 1 else start + step
        assert same(feed(on, state, ids[start:stop], WANTS), expected[start:stop])
        assert state.rewind(stop - 20) == stop - 20
        assert same(feed(on, state, ids[stop - 20 : stop], WANTS), expected[stop - 20 : stop])
        start = stop
    last = state.export().slots
    assert all(same(p, left.slots[n].last(len(p.key_high))) for n, p in last.items())
    state.release()


@pytest.mark.parametrize(("backend", "model"), EVERYWHERE)
def test_a_state_with_all_rows_is_imported_without_those_behind_the_windows(backend, model):
    on, (_, left) = compiled(backend, model), whole(model)
    state = on.import_(left, CONTEXT)
    rows_there = {n: len(p.key_high) for n, p in state.export().slots.items()}
    assert rows_there == {n: LONG - kept_from(LONG, on.windows.get(n)) for n in left.slots}
    state.release()


@pytest.mark.parametrize(("backend", "model"), EVERYWHERE)
def test_slots_of_one_window_may_begin_at_different_rows(backend, model):
    """Each slot has what the next row looks at; one of them, more than that."""
    on, ids, (expected, left) = compiled(backend, model), text(model), whole(model)
    cut = 400
    kept = {n: cut - first_seen(cut, w) // 64 * 64 for n, w in on.windows.items()}
    kept[max(kept)] = cut
    rows = left.slots.items()
    slots = {n: KVPlanes(*(getattr(p, f.name)[:cut] for f in fields(p))) for n, p in rows}
    slots = {n: p.last(kept.get(n, cut)) for n, p in slots.items()}
    moved = replace(left, lengths={"trunk": cut}, tokens=left.tokens[:cut], slots=slots)
    state = on.import_(moved, CONTEXT)
    assert same(feed(on, state, ids[cut:], WANTS), expected[cut:])
    state.release()


def test_a_chain_of_executables_gives_up_what_its_parts_do():
    """A model cut in two, its halves on different backends where there are two."""
    model, (expected, _) = "tiny-gemma3", whole("tiny-gemma3")
    known, ids = loaded(model), text("tiny-gemma3")
    one = CompileOptions(threads=1, extra={"poison": True})
    parts = [(every_backend()[name](), one) for name in ("reference", FASTEST)]
    cut = len(known.program.trunk.nodes) // 2
    on = place_split(parts, known.program, known.weights, [cut])
    assert on.windows == compiled(FASTEST, model).windows
    assert on.state_bytes(9000) < compiled(FASTEST, model, full_windows=True).state_bytes(9000)
    state = on.open(CONTEXT)
    assert same(feed(on, state, ids[:300], WANTS), expected[:300])
    moved = on.import_(state.export(), CONTEXT)
    assert same(feed(on, moved, ids[300:], WANTS), expected[300:])
    assert moved.rewind(LONG - 50) == LONG - 50
    assert same(feed(on, moved, ids[-50:], WANTS), expected[-50:])
    assert moved.rewind(LONG - 200) == 0
    state.release(), moved.release()


def test_states_that_lack_rows_are_refused_by_name():
    program, (_, left) = loaded("tiny-gemma3").program, whole("tiny-gemma3")
    windowed, seen_whole = "layers.0.kv", "layers.1.kv"

    def with_rows(slot, count):
        slots = {**left.slots, slot: left.slots[slot].last(count)}
        return replace(left, slots=slots)

    kept = LONG - 320
    check_exported(with_rows(windowed, kept), program, CONTEXT)
    for slot, count, told in [
        (windowed, kept - 1, "no multiple of 64"), (windowed, 16, "no multiple of 64"),
        (windowed, 0, "no multiple"), (seen_whole, kept, "should be"),
    ]:  # fmt: skip
        with pytest.raises(RequestError, match=told) as caught:
            check_exported(with_rows(slot, count), program, CONTEXT)
        assert caught.value.where == slot
    short = replace(left, tokens=left.tokens[:400], lengths={"trunk": 400})
    slots = {name: planes.last(400) for name, planes in left.slots.items()}
    with pytest.raises(RequestError, match="looks back 23 rows"):
        slots[windowed] = left.slots[windowed].last(16)
        check_exported(replace(short, slots=slots), program, CONTEXT)


@pytest.mark.parametrize("backend", every_backend())
def test_windowed_slots_stop_growing(backend):
    """A sequence's memory grows only by the rows of slots without windows."""
    on, full = compiled(backend, "tiny-gemma3"), compiled(backend, "tiny-gemma3", full_windows=True)
    growth = [e.state_bytes(64_000) - e.state_bytes(32_000) for e in (on, full)]
    assert growth[0] * 2 == growth[1]  # two of four layers are seen through windows
    state = on.open(CONTEXT)
    held = []
    for seed in range(LONGEST.get(backend, 700) // 100):
        feed(on, state, text("tiny-gemma3", seed, 100), ())
        held.append(state.nbytes())
        assert held[-1] <= on.state_bytes(len(held) * 100)
    assert held[-1] - held[-2] <= 2 * growth[0] // (32_000 // 100)
    state.release()


class Family:
    """Sequences that fork, go back, move and go on, beside the ids that each is fed."""

    def __init__(self, on, model, seed, longest):
        self.on, self.model, self.chance = on, model, random.Random(seed)
        self.longest = longest
        self.known = [(on.open(CONTEXT), [])]

    def some_ids(self, ids):
        count = min(self.chance.choice([1, 2, 30, 64, 150, 300]), self.longest - len(ids))
        return text(self.model, self.chance.randrange(40), 300)[: max(0, count)]

    def move(self):
        state, ids = self.chance.choice(self.known)
        kind = self.chance.random()
        if kind < 0.5:
            more = self.some_ids(ids)
            if not more:
                return
            feed(self.on, state, more, ())
            ids += more
        elif kind < 0.65 and len(self.known) < 5:
            self.known.append((state.fork(), list(ids)))
        elif kind < 0.75 and len(self.known) > 1:
            self.known.remove((state, ids))
            state.release()
        elif kind < 0.85:
            snapshot = state.snapshot()
            ahead = self.some_ids(ids)
            if ahead:
                feed(self.on, state, ahead, ())
            state.restore(snapshot)
        elif ids:
            del ids[state.rewind(self.chance.randrange(max(0, len(ids) - 90), len(ids) + 1)) :]

    def check(self):
        reference = compiled(FASTEST, self.model, full_windows=True)
        for state, ids in self.known:
            assert state.export().tokens.tolist() == ids
            expected, left = alone(reference, [*ids, 1], WANTS)
            assert same(feed(self.on, state, [1], WANTS), expected[-1:])
            for name, planes in state.export().slots.items():
                assert same(planes, left.slots[name].last(len(planes.key_high)))
            state.release()


@pytest.mark.parametrize(("backend", "model"), [*EVERYWHERE, ("cpu 128", "tiny-gemma3")])
def test_a_family_of_forks_goes_on_as_if_all_rows_were_there(backend, model):
    name, _, page = backend.partition(" ")
    if name not in every_backend():
        pytest.skip("the cpu backend is not here")
    on = compiled(name, model, int(page or 64))
    for seed in range(3 if name == "cpu" else 1):
        family = Family(on, model, seed, LONGEST.get(name, LONG))
        for _ in range(60 if name == "cpu" else 30):
            family.move()
        family.check()


@pytest.mark.parametrize(
    ("backend", "model", "seed"),
    [(*where, seed) for where in EVERYWHERE for seed in range(3 if where[0] == "cpu" else 1)],
)
def test_what_was_reserved_is_there_whoever_forks(backend, model, seed):
    """Forks take what memory there is; who was promised room before never lacks it."""
    length = LONGEST.get(backend, LONG)
    chance, ids = random.Random(seed), text(model, 1, length)
    size = compiled(backend, model).state_bytes(length)
    on = compiled(backend, model, memory_limit=3 * size // 2)
    before = on.free_bytes()
    state, others, fed = on.open(CONTEXT), [], 0
    assert state.reserve(length)
    while fed < length:
        count = min(chance.choice([20, 64, 100]), length - fed)
        batch = rows(state, ids[fed : fed + count], WANTS)
        result = forward(on, batch)
        assert result.outcomes[state].status is Status.COMPLETED, result.outcomes[state]
        assert on.free_bytes() >= -(1 + len(others)) * on.state_bytes(1)  # pages copied to write
        assert same([dict(r) for r in result.rows], whole(model, 1, length)[0][fed : fed + count])
        fed += count
        try:
            others.append(chance.choice([state, *others]).fork())
            others[-1].reserve(chance.choice([10, 200]))
        except RequestError:
            pass
        if others and chance.random() < 0.3:
            others.pop(chance.randrange(len(others))).release()
    for other in [state, *others]:
        other.release()
    assert on.free_bytes() == before


@pytest.mark.skipif("cpu" not in backends(), reason="the cpu backend is not here")
def test_a_fork_leaves_a_sequence_the_room_it_was_promised():
    """Pages that are shared cannot take turns, so a fork costs its parent as many new ones."""
    model, length = "tiny-gemma3", LONGEST["cpu"]
    ids, size = text(model, 1, length), compiled("cpu", model).state_bytes(length)

    def half_done(memory):
        on = compiled("cpu", model, memory_limit=memory)
        state = on.open(CONTEXT)
        assert state.reserve(length)
        feed(on, state, ids[:700], ())
        return on, state

    on, state = half_done(size)
    with pytest.raises(RequestError, match="no memory"):
        state.fork()
    assert same(feed(on, state, ids[700:], WANTS), whole(model, 1, length)[0][700:])
    assert on.free_bytes() == 0
    on, state = half_done(2 * size)
    forks, other = [state.fork() for _ in range(2)], on.open(CONTEXT)
    while other.reserve(other.length() + 1):
        feed(on, other, [1], ())
    assert same(feed(on, state, ids[700:], WANTS), whole(model, 1, length)[0][700:])
    assert on.free_bytes() >= -on.state_bytes(1)  # the page that both went on to write
    for one in (state, other, *forks):
        one.release()


def test_a_round_drafts_no_more_than_can_be_taken_back():
    """However much is drafted and however wrong it is, nothing is ever fed a second time."""
    model, rounds = "tiny-gemma3", 75
    prompted = request(text(model)[:380], rounds)
    expected = alone_in_engine(compiled(FASTEST, model, full_windows=True), prompted)
    on, fed = compiled(FASTEST, model), []
    plain = on.forward
    on.forward = lambda batch: fed.append(len(batch.rows)) or plain(batch)
    try:
        wrong = speculation(Scripted(lambda ids, count: [ids[-1]] * count), 200)
        with engine(on, batch_rows=512) as mine:
            made = mine.submit(prompted, speculation=wrong, record=True)
            mine.run()
    finally:
        del on.forward
    assert facts(made) == expected
    drafted = [r.proposed for r in made.rounds]
    assert max(drafted) == ROLLBACK_ROWS
    assert sum(fed) <= 380 + sum(drafted) + rounds


def test_an_extent_that_keeps_all_still_knows_its_window():
    """A state that comes without its first rows, where none are given up."""
    extent = Extent(window=10, base=128, length=300)
    assert (extent.trim(), extent.reaches(137), extent.reaches(136)) == (0, True, False)
    assert (extent.rewind(200), extent.base, extent.rewind(136), extent.base) == (200, 128, 0, 0)


@pytest.mark.parametrize("backend", every_backend())
def test_a_fault_in_a_later_piece_ends_that_sequence_alone(backend):
    """Values that rows supply ride along, piece by piece."""
    on = every_backend()[backend]().compile(attending(7), {}, CompileOptions(threads=1))
    assert on.windows == {"kv": 7}
    given = np.random.default_rng(1).standard_normal((2 * PIECE_ROWS, 2, 8)).astype(np.float32)
    states = [on.open(2 * PIECE_ROWS) for _ in range(2)]
    groups = [
        [Row(state, i, 0, (Digest("a0"),), {"q": values}) for i, values in enumerate(given)]
        for state in states
    ]
    expected = forward(on, groups[0]).rows
    states[0].rewind(0)
    groups[0][-3] = replace(groups[0][-3], inputs={"q": given[0] * 2.0**60})
    result = forward(on, *groups)
    assert [result.outcomes[s].status for s in states] == [Status.FAILED, Status.COMPLETED]
    assert result.rows[: len(given)] == [{}] * len(given)
    assert result.rows[len(given) :] == expected
    assert [s.length() for s in states] == [0, len(given)]
    for state in states:
        state.release()
