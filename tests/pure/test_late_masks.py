"""Masks that come once a batch is under way, on the Triton backend in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from engines import (  # noqa: E402
    TOKENIZER,
    alone,
    engine,
    executable,
    facts,
    loaded,
    prompt,
    request,
)

from cortiq.backend import (  # noqa: E402
    LATE,
    Batch,
    CompileOptions,
    Digest,
    Draw,
    Row,
    Status,
)
from cortiq.backend.seam import compiled_on  # noqa: E402
from cortiq.engine import schedule_ahead  # noqa: E402
from cortiq.engine.masks import BatchedMasks, prepare_masks  # noqa: E402
from cortiq.errors import BackendError  # noqa: E402
from cortiq.numerics.masks import mask_of  # noqa: E402
from cortiq.numerics.sampling import Sampling  # noqa: E402
from cortiq.serve.grammar import Grammars, masks_of  # noqa: E402
from cortiq_triton.backend import TritonBackend  # noqa: E402

VOCABULARY = 320
DRAW = Sampling(temperature=0.9, seed=3)
WANTS = (Draw(DRAW, mask=LATE), Digest("logits"))


def compiled(**extra):
    model = loaded("tiny-llama")
    return compiled_on(TritonBackend(), model.program, model.weights, CompileOptions(extra=extra))


@pytest.fixture(scope="module")
def ahead():
    made = compiled(graphs=True)
    yield made
    made.close()


def following(ids):
    """Allow what depends on the last id, and at first everything."""
    return None if len(ids) < 7 else mask_of(range(ids[-1] % 7, VOCABULARY, 7), VOCABULARY)


def test_masks_follow_while_the_next_step_is_computed(ahead):
    masked = [
        replace(request(prompt(n, 5), max_tokens=7, temperature=t, seed=n), masks=following)
        for n, t in ((1, 0.9), (2, 0.0))
    ]
    wanted = [*masked, request(prompt(3, 5), max_tokens=5, temperature=0.8)]
    with engine(ahead) as on:
        made = [on.submit(each) for each in wanted]
        most = 0
        while on.step():
            most = max(most, len(ahead.decoder.under_way))
    assert [facts(each) for each in made] == [alone(executable(), each) for each in wanted]
    assert most == 1 and not any(each.stats.waited for each in made)


class Following(BatchedMasks):
    """Masks that note what they were prepared for."""

    prepared: ClassVar[list[list[int]]] = []

    def __call__(self, ids):
        return following(ids)

    @classmethod
    def prepare(cls, asked):
        cls.prepared.append([len(ids) for _, ids in asked])


class Broken(Following):
    @classmethod
    def prepare(cls, asked):
        raise ValueError("no threads")


def test_late_masks_are_prepared_together_and_what_cannot_be_ends_its_own(ahead, monkeypatch):
    """Several sequences may share their masks, which are prepared once then."""
    monkeypatch.setattr(schedule_ahead, "PREPARED", 3)
    monkeypatch.setattr(Following, "prepared", [])
    shared = Following()
    plain = [
        replace(request(prompt(n, 5), max_tokens=4, temperature=0.9, seed=n), masks=masks)
        for n, masks in enumerate((Following(), shared, shared))
    ]
    with engine(ahead) as on:
        good = [on.submit(one) for one in plain]
        bad = on.submit(replace(plain[0], masks=Broken()))
        on.run()
    assert [facts(one) for one in good] == [alone(executable(), one) for one in plain]
    assert Following.prepared == [[6] * 2, [7] * 2, [8] * 2]
    assert str(bad.error) == "no threads" and len(bad.output.token_ids) == 1


def test_masks_of_a_grammar_may_be_shared():
    """The grammar library's threads take each matcher once."""
    pytest.importorskip("llguidance")
    grammars = Grammars(TOKENIZER, VOCABULARY, [2])
    recipe = {"grammar": "start: /a[bc]+/", "opened": False, "opens": "", "closes": ""}
    asked = [[5, *TOKENIZER.encode(text, add_bos=False)] for text in ("ab", "", "acb")]
    shared, own = masks_of(grammars, recipe, 1), masks_of(grammars, recipe, 1)
    assert prepare_masks([(shared, ids) for ids in asked] + [(own, asked[0])]) == {}
    for ids in asked:
        assert shared(ids) == masks_of(grammars, recipe, 1)(ids)
    assert own(asked[0]) == shared(asked[0])


def test_masks_that_raise_late_end_their_own_sequence(ahead):
    def broken(ids):
        if len(ids) > 6:
            raise ValueError("no more")
        return following(ids)

    plain = replace(request(prompt(4, 5), max_tokens=4), masks=following)
    with engine(ahead) as on:
        bad, good = on.submit(replace(plain, masks=broken)), on.submit(plain)
        on.run()
    assert str(bad.error) == "no more" and len(bad.output.token_ids) == 2
    assert facts(good) == alone(executable(), plain)


def test_a_draw_whose_mask_never_comes_fails_and_draws_nothing(ahead):
    first, second = ahead.open(16), ahead.open(16)
    rows = [Row(first, 0, 5, WANTS), Row(second, 0, 6, (Draw(DRAW), Digest("logits")))]
    assert ahead.late_masks(Batch(rows))
    ticket = ahead.forward(Batch(rows))
    ahead.forward(Batch([Row(second, 1, 7, (Digest("logits"),))])).result()
    outcomes = ticket.result().outcomes
    assert outcomes[first].status is Status.FAILED and "mask" in outcomes[first].reason
    assert outcomes[second].status is Status.COMPLETED and first.length() == 0
    first.release(), second.release()


def test_only_executables_and_batches_that_take_late_masks_get_them(ahead):
    with pytest.raises(BackendError, match="1 masks for 2 draws"):
        states = [ahead.open(16) for _ in range(2)]
        ahead.forward(Batch([Row(s, 0, 5, WANTS) for s in states])).supply([None])
    with pytest.raises(BackendError, match="allows none"):
        ahead.forward(Batch([Row(s, s.length(), 5, WANTS) for s in states[:1]])).supply([bytes(40)])
    piece = [Row(states[0], i, 5, WANTS if i else ()) for i in range(2)]
    assert not ahead.late_masks(Batch(piece))
    plain = compiled(graphs=False)
    for on in (plain, executable()):
        state = on.open(4)
        batch = Batch([Row(state, 0, 5, WANTS)])
        assert not on.late_masks(batch)
        assert on.forward(batch).result().outcomes[state].status is Status.DECLINED
        state.release()
    plain.close()
