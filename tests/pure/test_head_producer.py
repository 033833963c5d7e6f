"""The head's producer: cursors, priming by step and by chunk, chains, errors with both numbers."""

from __future__ import annotations

import numpy as np
import pytest

import cortiq
from cortiq.errors import RequestError
from cortiq_producers.head import HeadProducer, speculation_blocker
from cortiq_producers.protocols import LogitProducer, SpeculativeProducer

IDS = [(7 * i + 3) % 300 for i in range(24)]


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-lfm2"])
def executable(request):
    name = f"synthetic:{request.param}"
    with cortiq.load(name, backend="cpu", threads=1, heads="mtp") as model:
        yield model.executable


@pytest.fixture
def producer(executable):
    made = HeadProducer(executable, 64)
    yield made
    made.close()


def test_it_offers_the_protocols(producer):
    for protocol in (LogitProducer, SpeculativeProducer):
        missing = [n for n in vars(protocol) if n[0] != "_" and not hasattr(producer, n)]
        assert missing == []
    assert (producer.mtp_draft_depth(), producer.mtp_kv_position()) == (1, 0)


def drafted(producer, count):
    """A chain after IDS, whose last token is not read yet: logits of every step."""
    rows, token = [], IDS[-1]
    for step in range(count):
        rows.append(producer.draft_step(token, len(IDS) - 2 + step))
        token = int(rows[-1].argmax())
    return np.array(rows)


def by_step(executable):
    producer = HeadProducer(executable, 64)
    for i, token in enumerate(IDS[:-1]):
        producer.produce_prefill(token, i)
        if i:
            producer.prime_drafter(token, i - 1)
    return producer


def test_priming_by_step_is_priming_by_chunk(executable):
    producer = by_step(executable)
    expected = drafted(producer, 4)
    producer.close()
    for cuts in ([23], [5, 18], [1, 1, 21], [8, 8, 7]):
        other, start = HeadProducer(executable, 64), 0
        for size in cuts:
            stop = start + size
            following = IDS[stop] if stop < 23 else None
            other.prefill_chunk_priming_drafter(IDS[start:stop], start, following)
            start = stop
        assert other.mtp_kv_position() == 22
        assert (drafted(other, 4) == expected).all()
        other.close()


def test_going_back_and_on_is_never_having_gone_ahead(executable):
    producer = by_step(executable)
    expected = drafted(producer, 3)
    assert producer.mtp_kv_position() == 25
    producer.rewind_drafter(22)
    assert (drafted(producer, 3) == expected).all()
    point = producer.checkpoint()
    producer.verify([IDS[-1], 5, 6], 23)
    producer.rollback_retaining(point, 1)
    producer.rewind_drafter(min(23, producer.mtp_kv_position()))
    assert producer.mtp_kv_position() == 23
    producer.close()


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda p: p.draft_step(5, 9), "the head holds 22 rows, the step is at position 9"),
        (lambda p: p.draft_step(5, 23), "the head holds 22 rows, the step is at position 23"),
        (lambda p: p.prime_drafter(5, 0), "the head holds 22 rows, the step is at position 0"),
        (lambda p: p.rewind_drafter(23), "holds 22 rows and cannot go back to 23"),
        (lambda p: p.prefill_chunk_priming_drafter([1], 23, None), "the step is at position 23"),
        (lambda p: (p.prime_drafter(5, 22), p.draft_step(5, 23)),
         "the target has read 23 rows, the head's step is at 23"),
        (lambda p: p.draft_block(1, 2, 3), "drafts step by step"),
        (lambda p: p.record_committed([1], 0), "ids \\[3\\] are held from position 0"),
    ],
)  # fmt: skip
def test_a_cursor_that_is_elsewhere_is_said_with_both_numbers(executable, act, sentence):
    producer = by_step(executable)
    with pytest.raises(RequestError, match=sentence):
        act(producer)
    producer.close()


def test_stages_are_those_of_the_graph(executable):
    producer = by_step(executable)
    stages = producer.stages(IDS[-1], 22)
    assert {"mtp.embed", "mtp.given", "mtp.joined", "mtp.input", "mtp.out", "logits"} <= set(stages)
    joined = np.concatenate([stages["mtp.embed_norm"], stages["mtp.given_norm"]])
    assert (stages["mtp.joined"] == joined).all()
    producer.close()


@pytest.mark.parametrize(("heads", "name"), [("mtp", "mtp.hidden"), ("mtp:raw", "mtp.out")])
def test_a_chain_goes_on_with_rows_of_the_kind_its_first_step_was_given(heads, name):
    with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1, heads=heads) as model:
        producer = by_step(model.executable)
        source = model.program.facts["draft_head"].source
        assert source == ("hidden" if heads == "mtp" else "layers.2.out")
        first = producer.stages(IDS[-1], len(IDS) - 2)
        second = producer.stages(int(first["logits"].argmax()), len(IDS) - 1)
        assert (second["mtp.given"] == first[name]).all()
        producer.close()


def test_why_there_is_no_speculation_is_said(executable):
    assert speculation_blocker(executable.program) is None
    with cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1, heads="mimo") as model:
        assert "is a stack" in speculation_blocker(model.program)
        with pytest.raises(RequestError, match="is a stack"):
            HeadProducer(model.executable, 9)
    with cortiq.load("synthetic:tiny-llama", backend="cpu", threads=1) as model:
        assert "without a draft head" in speculation_blocker(model.program)
