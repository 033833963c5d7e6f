"""Batches of any kind under way on the Triton backend, in Triton's interpreter."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from engines import (  # noqa: E402
    TOKENIZER,
    WAYS,
    alone,
    executable,
    facts,
    loaded,
    prompt,
    request,
)

from cortiq.backend import (  # noqa: E402
    Argmax,
    Batch,
    CompileOptions,
    Digest,
    Draw,
    Drawn,
    DrawnLogit,
    Named,
    Row,
    Status,
    Top,
)
from cortiq.engine.engine import Engine  # noqa: E402
from cortiq.engine.scheduler import EngineOptions  # noqa: E402
from cortiq.errors import BackendError  # noqa: E402
from cortiq.numerics.masks import mask_of  # noqa: E402
from cortiq.numerics.sampling import Sampling  # noqa: E402
from cortiq_conformance import models  # noqa: E402
from cortiq_reference.backend import ReferenceBackend  # noqa: E402
from cortiq_triton import flight, shapes  # noqa: E402
from cortiq_triton import mixed as mixed_batches  # noqa: E402
from cortiq_triton.backend import TritonBackend  # noqa: E402
from cortiq_triton.shapes import ShapeCache  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflows that faults are
WANTS = (Argmax(), Digest("logits"))
PENALISED = Draw(Sampling(temperature=0.7, seed=3, presence_penalty=0.5))
OTHERS = (PENALISED, Digest("logits"), Top(2), Named("logits"))


def compiled(backend, **extra):
    model = models.load("tiny-llama")
    return backend.compile(model.program, model.weights, CompileOptions(extra=extra))


@pytest.fixture(scope="module")
def ahead():
    made = compiled(TritonBackend(), graphs=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def defined():
    made = compiled(ReferenceBackend())
    yield made
    made.close()


def mixed(on, depth):
    """Rows of prompts beside rows that go on from what the batch before draws; results in order."""
    first, second, third = (on.open(64) for _ in range(3))
    batches = [
        [Row(first, i, 5 + i, WANTS if i == 2 else ()) for i in range(3)]
        + [Row(second, i, 9 + i) for i in range(17)],
        [Row(first, 3, Drawn(2), WANTS)]
        + [Row(second, 17 + i, 30 + i, OTHERS if i == 1 else ()) for i in range(2)],
        [Row(second, 19, Drawn(2), OTHERS), Row(first, 4, Drawn(0), WANTS)]
        + [Row(third, i, 2 * i, WANTS if i == 4 else ()) for i in range(5)],
        [Row(first, 5, Drawn(1), WANTS), Row(third, 5, Drawn(6), WANTS)],
        [Row(third, 6, Drawn(1), WANTS), Row(second, 20, Drawn(0), WANTS)],
    ]
    found, under_way = [], []
    for rows in batches:
        under_way.append(on.forward(Batch(rows)))
        while len(under_way) > depth:
            found.append(under_way.pop(0).result())
    found += [ticket.result() for ticket in under_way]
    ids = [state.export().tokens.tolist() for state in (first, second, third)]
    for state in (first, second, third):
        state.release()
    return [[plain(row) for row in each.rows] for each in found], ids


def plain(row):
    return {want: tuple(map(str, v)) if isinstance(v, tuple) else str(v) for want, v in row.items()}


def test_mixed_batches_under_way_bring_what_they_bring_one_by_one(ahead, defined):
    # A row of the last batch goes on from one that drew nothing there: it has no id.
    expected = mixed(defined, 0)
    assert mixed(ahead, 0) == expected
    assert mixed(ahead, 2) == expected
    assert not ahead.decoder.under_way


def test_a_rewind_waits_for_its_own_rows_and_for_no_others(ahead):
    mine, other = ahead.open(40), ahead.open(40)
    ahead.forward(Batch([Row(mine, i, 1) for i in range(4)]))
    ahead.forward(Batch([Row(other, i, 1) for i in range(3)]))
    assert mine.rewind(2) == 2 and len(ahead.decoder.under_way) == 1
    copy = mine.fork()
    assert len(ahead.decoder.under_way) == 1
    other.release()
    assert not ahead.decoder.under_way
    copy.release()
    mine.release()


def test_a_fault_fails_its_sequence_and_its_rows_in_later_batches_under_way(ahead):
    good, bad = ahead.open(20), ahead.open(20)
    first = ahead.forward(
        Batch([*(Row(good, i, 1, WANTS) for i in range(2)), *(Row(bad, i, 2) for i in range(3))])
    )
    first.fetched._flags.parts[0][4] = 1  # a row of the second, as a kernel would have set it
    second = ahead.forward(Batch([Row(good, 2, Drawn(1), WANTS), Row(bad, 3, 3), Row(bad, 4, 3)]))
    outcomes = second.result().outcomes
    assert outcomes[bad].status is Status.FAILED and outcomes[good].status is Status.COMPLETED
    assert first.result().outcomes[bad].status is Status.FAILED
    assert bad.length() == 0 and good.length() == 3 and second.result().rows[1:] == [{}, {}]
    for state in (good, bad):
        state.release()


def test_a_declined_sequence_stays_as_it_was_and_others_are_computed(ahead):
    one, other = ahead.open(20), ahead.open(20)
    rows = [Row(one, 1, 1), Row(other, 0, 1), Row(other, 1, 2, WANTS)]
    result = ahead.forward(Batch(rows)).result()
    assert result.outcomes[one].status is Status.DECLINED and one.length() == 0
    assert result.outcomes[other].status is Status.COMPLETED and other.length() == 2
    nobody = ahead.forward(Batch([Row(one, 0, -1)])).result()
    assert nobody.outcomes[one].status is Status.DECLINED
    undrawn = ahead.forward(Batch([Row(other, 2, Drawn(0), WANTS)])).result()
    assert undrawn.outcomes[other].status is Status.DECLINED
    with pytest.raises(BackendError, match="neighbours"):
        ahead.forward(Batch([Row(one, 0, 1), Row(other, 2, 1), Row(one, 1, 1)]))
    for state in (one, other):
        state.release()


def test_an_error_in_a_launch_leaves_nothing_under_way(ahead, monkeypatch):
    one, other = ahead.open(20), ahead.open(20)
    before = ahead.forward(Batch([Row(other, i, 1, WANTS if i == 1 else ()) for i in range(2)]))

    def refuse(self, places):
        raise MemoryError("no room for values")

    monkeypatch.setattr(flight.Run, "fetch", refuse)
    with pytest.raises(MemoryError, match="no room for values"):
        ahead.forward(Batch([Row(one, i, 1) for i in range(2)]))
    monkeypatch.undo()
    assert one.length() == 0 and not ahead.decoder.under_way
    assert before.result().outcomes[other].status is Status.COMPLETED and other.length() == 2
    for state in (one, other):
        state.release()


def served(model, wanted, rows, chance=None):
    """Serve requests on a device that runs ahead, one of them twice and cancelled once."""
    made_of, options = loaded(model), CompileOptions(extra={"graphs": True})
    device = TritonBackend().compile(made_of.program, made_of.weights, options)
    with Engine(device, TOKENIZER, options=EngineOptions(batch_rows=rows)) as engine:
        made = []
        for one in wanted:
            made.append(engine.submit(one))
            for _ in range(chance.randrange(2) if chance else 0):
                engine.step()
        gone = engine.submit(wanted[0])
        engine.step()
        gone.cancel()
        engine.run()
    assert not device.decoder.under_way
    captured = list(device.decoder.mixed.shapes)
    device.close()
    return made, captured


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_requests_that_come_and_go_get_what_each_gets_alone(seed):
    ways = list(WAYS.values())
    wanted = [
        request(prompt(10 * seed + i, 3 + 5 * i), 2 + i % 3, **ways[(i + seed) % 3])
        for i in range(5)
    ]
    on = executable("cpu", "tiny-llama")
    made, _ = served("tiny-llama", wanted, 9, random.Random(seed))
    assert [facts(one) for one in made] == [alone(on, one) for one in wanted]


def test_pieces_of_prompts_beside_steps_are_one_shape_whatever_their_lengths():
    """On a model with rings; a shape is used for pieces that end elsewhere, and for other wants."""
    ways = list(WAYS.values())
    wanted = [request(prompt(i, 20 + 3 * i), 2 + i % 2, **ways[i % 3]) for i in range(6)]
    on = executable("cpu", "tiny-lfm2")
    made, captured = served("tiny-lfm2", wanted, 40)
    assert [facts(one) for one in made] == [alone(on, one) for one in wanted]
    pieces = [size for _, size, *_ in captured if not size.each]
    assert {(size.rows, size.sequences) for size in pieces} <= {(64, n) for n in range(2, 8)}
    assert len(pieces) <= 3


MASKED = Draw(Sampling(temperature=0.8, seed=9), mask=mask_of(range(0, 320, 3), 320))
EACH = ((PENALISED, Digest("logits")), (Argmax(), Top(3)), (), (MASKED, DrawnLogit()), WANTS)


def rounds(on, every):
    """Rounds of rows that want this and that, each after a rewind of one row; results in order."""
    states, found, fed = [on.open(64) for _ in range(3)], [], 0
    for counts in ((3, 1, 2), (1, 3, 2), (2, 1, 3)):
        rows = []
        for state, count in zip(states, counts, strict=True):
            start = state.rewind(max(0, state.length() - 1))
            for i in range(count):
                rows.append(Row(state, start + i, 7 * fed % 320, every[fed % len(every)]))
                fed += 1
        found += [plain(row) for row in on.forward(Batch(rows)).result().rows]
    for state in states:
        state.release()
    return found


def test_rounds_of_drafts_are_captured_and_every_row_gets_its_own(ahead, defined):
    before = set(ahead.decoder.mixed.shapes)
    assert rounds(ahead, EACH) == rounds(defined, EACH)
    (size,) = [key[1] for key in set(ahead.decoder.mixed.shapes) - before]
    assert size.each and (size.rows, size.sequences) == (6, 3)


def test_many_rows_are_captured_when_they_come_again(ahead, defined, monkeypatch):
    for module in (shapes, mixed_batches):
        monkeypatch.setattr(module, "FEW_ROWS", 16)
    monkeypatch.setattr(shapes, "MANY_STEP", 32)

    def pieces(on):
        found = []
        for start in (3, 4, 5):
            first, second = on.open(64), on.open(64)
            rows = [Row(first, i, start * i % 320, WANTS if i == 19 else ()) for i in range(20)]
            rows += [Row(second, i, i, WANTS if i == start else ()) for i in range(start + 1)]
            found += [plain(row) for row in on.forward(Batch(rows)).result().rows]
            found += [plain(row) for row in on.forward(Batch([
                Row(first, 20, Drawn(19), WANTS), Row(second, start + 1, 9, WANTS)
            ])).result().rows]  # fmt: skip
            first.release(), second.release()
        return found

    before = set(ahead.decoder.mixed.shapes)
    assert pieces(ahead) == pieces(defined)
    (size,) = [key[1] for key in set(ahead.decoder.mixed.shapes) - before]
    assert not size.each and (size.rows, size.sequences) == (32, 32)


def test_shapes_used_longest_ago_are_dropped_when_all_hold_too_much():
    kept = ShapeCache("cpu", most=10)
    for key, size in (("a", 4), ("b", 4), ("c", 2)):
        kept.keep(key, key.upper(), size)
    assert kept.use("a") == "A" and kept.use("d") is None and kept.nbytes == 10
    kept.keep("d", "D", 3)
    assert list(kept) == ["c", "a", "d"] and kept.nbytes == 9
    kept.keep("e", "E", 99)
    assert list(kept) == ["e"] and kept.use("e") == "E"


def test_steps_are_filled_up_by_rows_that_nobody_reads(ahead, defined):
    """Nine sequences take the shape of sixteen, and so do ten."""

    def steps(on):
        states, found = [on.open(20) for _ in range(10)], []
        for count, token in ((9, 3), (10, 4)):
            rows = [Row(s, s.length(), token + i, WANTS) for i, s in enumerate(states[:count])]
            found += [plain(row) for row in on.forward(Batch(rows)).result().rows]
        again = [Row(s, s.length(), Drawn(i), WANTS) for i, s in enumerate(states)]
        found += [plain(row) for row in on.forward(Batch(again)).result().rows]
        for state in states:
            state.release()
        return found

    before = len(ahead.decoder.shapes)
    assert steps(ahead) == steps(defined)
    assert len(ahead.decoder.shapes) == before + 1
