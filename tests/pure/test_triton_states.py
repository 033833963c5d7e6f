"""States of sequences on the Triton backend: what windows give up, and how recurrences go back."""

from __future__ import annotations

from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

import going_back  # noqa: E402
import small_program  # noqa: E402
from sequences import alone, completed, feed, rows, same  # noqa: E402

from cortiq.backend import (  # noqa: E402
    Argmax,
    Batch,
    CompileOptions,
    Digest,
    Named,
    Row,
    Status,
)
from cortiq.backend.windows import kept_from  # noqa: E402
from cortiq.ir import Builder  # noqa: E402
from cortiq.ir.layers import Attention, Embedding, Linear, Residual  # noqa: E402
from cortiq_conformance.level0.recurrences import PROBES  # noqa: E402
from cortiq_reference.backend import ReferenceBackend  # noqa: E402
from cortiq_triton.backend import TritonBackend  # noqa: E402

WIDTH, VOCABULARY, CONTEXT, WINDOWS = 16, 24, 640, {"kv.0": 20}
WANTS = (Argmax(), Digest("logits"))
NAMING = (Argmax(), Named("x0"), Named("logits"))
PROMPT, END = 318, 386
"""A prompt in one batch, in which the window gives up tiles three times, and some rows more."""


@cache
def windowed():
    """A layer that is seen through a window, and one that is seen whole."""
    b = Builder(context=CONTEXT, facts={"vocab_size": VOCABULARY})
    token, position = b.input("token"), b.input("position")
    x = b.add(Embedding(VOCABULARY, WIDTH), token, name="embed", weights={"table": "embed"})
    for n in range(2):
        op = Attention(WIDTH, 1, 1, WIDTH, window=WINDOWS.get(f"kv.{n}"))
        weights = {role: f"{n}.{role}" for role in op.weight_shapes()}
        y = b.add(op, x, position, name=f"a{n}", weights=weights, slots={"kv": f"kv.{n}"})
        x = b.add(Residual(), x, y, name=f"x{n}")
    b.add(Linear(WIDTH, VOCABULARY), x, name="logits", weights={"weight": "embed"})
    b.graph("trunk", ("logits",))
    return small_program.bound(b.program(), 2)


def compiled(backend, **options):
    program, weights = windowed()
    return backend.compile(program, weights, CompileOptions(**options))


def captured(**options):
    return compiled(TritonBackend(), extra={"graphs": True, "poison": True}, **options)


IDS = [(7 * i * i + i // 5) % VOCABULARY for i in range(END)]


@cache
def defined():
    """What rows of the text bring where nothing is given up, and the state they leave."""
    on = compiled(ReferenceBackend(), full_windows=True)
    state = on.open(CONTEXT)
    found = feed(on, state, IDS, WANTS)
    return found, state.export()


def check_exported(state, on):
    """Check that what a sequence has is what the definition has of it, from the same rows on."""
    exported, length = state.export(), state.length()
    for name, planes in defined()[1].slots.items():
        kept = exported.slots[name]
        assert kept.base(length) == kept_from(length, on.windows.get(name))
        parts = zip(vars(planes).values(), vars(kept).values(), strict=True)
        assert all(same(whole[kept.base(length) : length], part) for whole, part in parts)


def test_windows_give_rows_up_under_captured_steps_and_no_bit_changes():
    on, (expected, _) = captured(), defined()
    assert on.windows == WINDOWS
    state, beside = on.open(CONTEXT), on.open(CONTEXT)
    assert state.reserve(END)
    promised = state.nbytes()
    assert promised == on.state_bytes(END) < captured(full_windows=True).state_bytes(END)
    found = feed(on, state, IDS[:PROMPT], ())
    assert state.nbytes() == promised == on.held_bytes()  # what the prompt took beyond is free
    for at in range(PROMPT, PROMPT + 4):  # 320 is the first row of a page that is used again
        found += feed(on, state, IDS[at : at + 1], WANTS)
    assert on.decoder.shapes and state.nbytes() == promised
    branch, middle = state.fork(), PROMPT + 4
    mixed = completed(on, rows(state, IDS[middle : middle + 3], WANTS), rows(beside, [5], WANTS))
    found += mixed[:3]
    found += feed(on, state, IDS[middle + 3 : END - 1], ())
    found += feed(on, state, IDS[END - 1 :], WANTS)
    assert state.rewind(END - 64) == END - 64
    feed(on, state, IDS[END - 64 :], ())
    check_exported(state, on)
    asked = [*range(PROMPT, middle + 3), END - 1]
    assert same([found[at] for at in asked], [expected[at] for at in asked])
    one = feed(on, branch, IDS[middle : middle + 1], WANTS)
    assert same(one, expected[middle : middle + 1])
    assert state.rewind(250) == 0 and state.length() == 0
    for each in (state, branch, beside):
        each.release()
    assert on.held_bytes() == 0
    on.close()


@pytest.fixture(scope="module", params=PROBES)
def started(request):
    """An executable, rows for it, and what the reference brings for each of them."""
    poisoned = CompileOptions(extra={"poison": True})
    found = going_back.started(request.param, TritonBackend(), poisoned, 150)
    yield found
    found[0].close()


@pytest.mark.slow
@pytest.mark.parametrize(("length", "ahead"), [(1, 9), (64, 64), (65, 63), (129, 20)])
def test_rewind_is_never_having_gone_ahead(started, length, ahead):
    going_back.check_rewind(*started, length, ahead)


@pytest.mark.slow
def test_a_moved_sequence_goes_back_to_where_it_came_or_to_its_start(started):
    going_back.check_move(*started, 150)


@cache
def recurrent():
    """Two delta rules that are alike, whose states go back in one launch."""
    b = Builder(context=CONTEXT, facts={"vocab_size": VOCABULARY})
    token, _ = b.input("token"), b.input("position")
    weights = {"table": "embed"}
    x = b.add(Embedding(VOCABULARY, small_program.WIDTH), token, name="embed", weights=weights)
    for n in range(2):
        x = small_program.delta(b, x, f"layers.{n}", f"state.{n}", heads=1)
    b.add(Linear(small_program.WIDTH, VOCABULARY), x, name="logits", weights={"weight": "embed"})
    b.graph("trunk", ("logits",))
    return small_program.bound(b.program(), 3)


def test_captured_steps_and_rounds_keep_rows_and_marks_to_go_back():
    """Over three marks: a round is taken back to before one, and pieces to rows behind two."""
    program, weights = recurrent()
    reference = ReferenceBackend().compile(program, weights, CompileOptions())
    expected, _ = alone(reference, IDS[:136], WANTS)
    _, left = alone(reference, IDS[:135], ())
    extra = {"graphs": True, "poison": True}
    on = TritonBackend().compile(program, weights, CompileOptions(extra=extra))
    state, beside = on.open(CONTEXT), on.open(CONTEXT)
    feed(on, state, IDS[:62], ())
    for at in (62, 63, 64):
        assert same(feed(on, state, IDS[at : at + 1], WANTS), expected[at : at + 1])
    assert state.rewind(63) == 63
    wrong = completed(on, rows(state, [5, 6, 7], WANTS), rows(beside, [1], WANTS))
    assert state.rewind(63) == 63 and not same(wrong[0], expected[63])
    found = completed(on, rows(state, IDS[63:66], WANTS), rows(beside, [1], WANTS))
    assert on.decoder.mixed.shapes and same(found[:3], expected[63:66])
    feed(on, state, IDS[66:195], ())
    for length in (194, 192, 135):
        assert state.rewind(length) == length
    assert same(state.export().slots, left.slots)
    assert same(feed(on, state, IDS[135:136], WANTS), expected[135:136])
    assert state.rewind(127) == 0
    for each in (state, beside):
        each.release()
    on.close()


def rounds(on):
    """Rounds whose last rows, or all, ask for a value by name: one that all rows have, and one that
    only rows with logits have; a shape comes twice.
    """
    found, states = [], [on.open(40) for _ in range(2)]
    for start in (0, 3):
        rows = []
        for n, state in enumerate(states):
            for at in range(start, start + 3):
                asked = at == start + 2 or n == 0
                rows.append(Row(state, at, 5 * at % 7, NAMING if asked else ()))
        found.append(list(map(dict, on.forward(Batch(rows)).result().rows)))
    for state in states:
        state.release()
    return found


def test_rounds_that_name_values_are_captured():
    on, expected = captured(), rounds(compiled(ReferenceBackend()))
    assert same(rounds(on), expected)
    (key,) = on.decoder.mixed.shapes
    assert key[3] == ("logits", "x0")
    on.close()


def drafted(on):
    """Steps as a draft head takes them: each supplies a value that the one before brought."""
    wants = NAMING
    states, found, given = [on.open(40) for _ in range(2)], [], [{}, {}]
    for step in range(3):
        if step == 2:
            given[1] = {"x0": given[1]["x0"] * 2.0**60}
        batch = Batch([Row(s, step, 3 + n, wants, given[n]) for n, s in enumerate(states)])
        result = on.forward(batch).result()
        found.append(([result.outcomes[s].status for s in states], list(map(dict, result.rows))))
        given = [{"x0": row[wants[1]] * 0.5} for row in result.rows if row]
    for state in states:
        state.release()
    return found


def test_steps_that_name_values_and_supply_them_are_captured():
    on = captured()
    expected, found = drafted(compiled(ReferenceBackend())), drafted(on)
    assert [one[0] for one in found] == [one[0] for one in expected]
    assert found[2][0] == [Status.COMPLETED, Status.FAILED]
    assert all(same(mine[1], theirs[1]) for mine, theirs in zip(found, expected, strict=True))
    kinds = [(key[3], key[4]) for key in on.decoder.shapes]
    supplied = (("given x0", 2), ("given x0 at", 2))  # a table of two rows, and where each row's is
    assert kinds == [(("logits", "x0"), ()), (("logits", "x0"), supplied)]
    on.close()
