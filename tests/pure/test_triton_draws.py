"""Draws, the most likely ids and drawn logits of a batch of rows on Triton, beside the contract."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the Triton backend keeps its memory in PyTorch")
pytest.importorskip("triton", reason="Triton has no package for this platform")

from cortiq.backend import (  # noqa: E402
    Argmax,
    Batch,
    CompileOptions,
    Digest,
    Draw,
    Drawn,
    DrawnLogit,
    Row,
    Top,
)
from cortiq.numerics import sampling  # noqa: E402
from cortiq.numerics.contract import F32, snap  # noqa: E402
from cortiq.numerics.masks import mask_of  # noqa: E402
from cortiq.numerics.sampling import Sampling  # noqa: E402
from cortiq_conformance import models  # noqa: E402
from cortiq_reference.backend import ReferenceBackend  # noqa: E402
from cortiq_triton import draw, prefix, top_logprobs  # noqa: E402
from cortiq_triton.backend import TritonBackend  # noqa: E402
from cortiq_triton.call import Counters  # noqa: E402
from cortiq_triton.draw_numbers import Drawing, Stored, arrays_of  # noqa: E402
from cortiq_triton.rowset import RowBuffer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflows that faults are


@pytest.fixture(params=["whole rows", "parts and short lists"])
def tiles(request, monkeypatch):
    """Rows in one part, then in many, with lists that are too short for what they are to hold."""
    if request.param != "whole rows":
        monkeypatch.setattr(prefix, "BLOCK", 64)
        monkeypatch.setattr(prefix, "CAPACITY", 5)
        monkeypatch.setattr(prefix, "CHUNK", 16)


def drawn(x, asked):
    """Tokens and fault flags of (row, want, position, history) of logits x."""
    drawings, tokens = [], []
    for place, want, position, history in asked:
        known = Stored(4 * len(tokens), len(history))
        tokens += history
        drawings.append(Drawing(want, place, place, position, known))
    features, arrays = arrays_of(drawings, x.shape[1])
    arrays["tokens"] = np.array([*tokens, 0], np.int32)
    buffer = RowBuffer("cpu")
    buffer.fill(arrays)
    there = buffer.views(arrays)
    if features.penalties:
        there["histories"] += there["tokens"].data_ptr()
    faults, counters = torch.zeros(len(x), dtype=torch.int32), Counters("cpu")
    longest = max(len(history) for *_, history in asked)
    found = draw.draw(torch.from_numpy(x), features, there, faults, counters, longest)
    assert not any(table.any() for table in counters._kept), "counts are left behind"
    return found.tolist(), faults.tolist()


def logits_of(rng, rows, width, kind):
    x = rng.standard_normal((rows, width)).astype(F32)
    x = {"plain": 3 * x, "flat": x / 64, "ties": np.round(x), "equal": 0 * x + 2,
         "wide": x * F32(1e6), "one far below": np.where(x < -2, F32(-1e9), x)}[kind]  # fmt: skip
    return snap(x.astype(F32))


KINDS = st.sampled_from(["plain", "flat", "ties", "equal", "wide", "one far below"])
CHAINS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 2, 7, 40, 10**6, 1 << 40]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.03, 1e-9]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.25]),
    logit_bias=st.dictionaries(st.integers(0, 9), st.sampled_from([-3.0, 0.5, 9.0]), max_size=3),
    seed=st.integers(0, (1 << 64) - 1),
)


@settings(max_examples=12, deadline=None)
@given(
    chains=st.lists(CHAINS, min_size=3, max_size=6), kind=KINDS, seed=st.integers(0, 999),
    width=st.sampled_from([10, 63, 300]), masked=st.booleans(), longer=st.booleans(),
)  # fmt: skip
def test_rows_with_any_options_draw_together_what_each_draws_alone(
    chains, kind, seed, width, masked, longer
):
    rng = np.random.default_rng(seed)
    x = logits_of(rng, 3, width, kind)
    asked, expected = [], []
    for number, chain in enumerate(chains):
        ids = rng.permutation(width)[: 1 + width // 3].tolist()
        mask = mask_of(ids, width) if masked and number % 2 else None
        if mask and longer:  # as libraries of grammars have them: bits past the end mean nothing
            mask = mask + b"\xff" * 8
        history = rng.integers(0, 10, int(rng.integers(0, 30))).tolist()
        place, position = int(rng.integers(3)), int(rng.integers(1 << 32))
        want = Draw(chain, number, mask)
        asked.append((place, want, position, history))
        expected.append(sampling.draw(x[place], chain, history, position, number, mask=mask))
    assert drawn(x, asked) == (expected, [0, 0, 0])


@pytest.mark.parametrize("kind", ["plain", "flat", "ties", "equal", "wide"])
def test_a_prefix_is_found_across_parts_and_beyond_what_is_listed(tiles, kind):
    x = logits_of(np.random.default_rng(5), 3, 300, kind)
    chains = [
        Sampling(top_k=9, seed=1), Sampling(top_k=150, top_p=0.7, seed=2), Sampling(top_p=0.4),
        Sampling(temperature=0.0), Sampling(top_k=299), Sampling(min_p=0.2, top_p=0.999),
    ]  # fmt: skip
    asked = [(n % 3, Draw(chain), n, []) for n, chain in enumerate(chains)]
    right = [sampling.draw(x[n % 3], chain, (), n) for n, chain in enumerate(chains)]
    assert drawn(x, asked) == (right, [0, 0, 0])


@pytest.mark.parametrize("kind", ["plain", "ties", "equal", "wide"])
@pytest.mark.parametrize("count", [1, 2, 17, 300])
def test_the_most_likely_are_in_order_with_their_sum(tiles, kind, count):
    x = logits_of(np.random.default_rng(7), 3, 300, kind)
    faults = torch.zeros(3, dtype=torch.int32)
    found = top_logprobs.ordered(torch.from_numpy(x), count)
    ids, values = top_logprobs.most_likely(found, count)
    right = sampling.top(x, count)
    assert np.array_equal(ids.numpy(), right[0]) and np.array_equal(values.numpy(), right[1])
    assert np.array_equal(top_logprobs.sums_of(found, faults)[1].numpy(), sampling.log_sum_exp(x))
    assert not faults.any()


def test_a_fault_of_a_draw_is_of_its_row_alone():
    x = logits_of(np.random.default_rng(1), 3, 50, "plain")
    x[1, 4] = 2.0**49
    chain = Sampling(temperature=0.25)
    asked = [(row, Draw(chain), 3, []) for row in range(3)]
    assert drawn(x, asked)[1] == [0, 1, 0]
    mask = mask_of(range(5, 50), 50)
    asked = [(row, Draw(chain, mask=mask), 3, []) for row in range(3)]
    assert drawn(x, asked)[1] == [0, 0, 0]
    asked = [(row, Draw(replace(chain, temperature=0.0)), 3, []) for row in range(3)]
    assert drawn(x, asked)[1] == [0, 0, 0]


LOGITS = Digest("logits")
COUNTED = Sampling(0.0, frequency_penalty=-99.0)
"""Draws the id that the history has most often."""
OTHERS = Sampling(0.9, repetition_penalty=0.5, presence_penalty=1.0, logit_bias={7: 3.0}, seed=6)


def wants_of(step, vocabulary):
    """What three rows want, each something else, and other things from step to step."""
    mask = mask_of(range(step % 3, vocabulary, 3), vocabulary)
    return [
        (Draw(COUNTED), LOGITS, DrawnLogit()),
        (Draw(OTHERS, choice=1, mask=mask if step % 2 else None), LOGITS, Top(5)),
        (Argmax(), LOGITS, DrawnLogit(1.5)) if step < 3
        else (Draw(Sampling(1.3, top_k=20, top_p=0.8, min_p=0.01, seed=9)), LOGITS, Top(3)),
    ]  # fmt: skip


def stream(executable, ahead):
    """Prompts of three sequences, steps ahead, a rewind and a fork, and steps ahead again."""
    vocabulary = executable.program.trunk.values["logits"].shape[0]
    states = [executable.open(60) for _ in range(3)]
    rows = [
        Row(s, i, 11 * n + 3 * (i % 4), wants_of(0, vocabulary)[n] if i == 8 + n else ())
        for n, s in enumerate(states)
        for i in range(9 + n)
    ]
    found, under_way = [], []

    def submit(rows):
        under_way.append(executable.forward(Batch(rows)))
        while len(under_way) > ahead:
            found.extend(under_way.pop(0).result().rows)

    def steps(numbers, sources):
        for step in numbers:
            wants = wants_of(step, vocabulary)
            submit([
                Row(s, s.length(), source, wants[n])
                for n, (s, source) in enumerate(zip(states, sources, strict=True))
            ])  # fmt: skip
            sources = [Drawn(0), Drawn(1), Drawn(2)]

    submit(rows)
    steps(range(1, 4), [Drawn(8), Drawn(18), Drawn(29)])
    assert states[0].rewind(9) == 9
    child = states[1].fork(11)
    states[1].release()
    states[1] = child
    submit([Row(states[0], 9 + i, token) for i, token in enumerate((200, 200, 200))])
    steps(range(4, 7), [200, 201, 202])
    for ticket in under_way:
        found.extend(ticket.result().rows)
    return [row for row in found if row], [s.export().tokens.tolist() for s in states]


def test_steps_ahead_draw_by_histories_that_were_rewound_and_forked():
    model = models.load("tiny-llama")
    right = stream(ReferenceBackend().compile(model.program, model.weights, CompileOptions()), 0)
    options = CompileOptions(extra={"graphs": True})
    executable = TritonBackend().compile(model.program, model.weights, options)
    found = stream(executable, 1)
    assert found[1] == right[1] and len(found[0]) == len(right[0])
    for mine, other in zip(found[0], right[0], strict=True):
        assert mine.keys() == other.keys()
        for want, value in mine.items():
            whole = value if isinstance(value, tuple) else (value,)
            expected = other[want] if isinstance(other[want], tuple) else (other[want],)
            for a, b in zip(whole, expected, strict=True):
                assert np.array_equal(np.ravel(a), np.ravel(b)), want
    asked = [asked for shape in executable.decoder.shapes.values() for asked in shape.answers]
    assert len(asked) >= 3 and all(one.draws is not None for one in asked)
    executable.close()
