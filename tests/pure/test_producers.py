"""The producer protocols over executables: chunked = sequential, rolled back = never gone ahead."""

from __future__ import annotations

import numpy as np
import pytest
from floats import same_bits

import cortiq
from cortiq.errors import RequestError
from cortiq_producers.protocols import ChunkedPrefillRunner, LogitProducer, SpeculativeProducer
from cortiq_producers.scripted import ScriptedProducer
from cortiq_producers.target import DraftedProducer, ExecutableProducer

IDS = [(7 * i + 3) % 64 for i in range(24)]


@pytest.fixture(scope="module", params=["tiny-mimo", "tiny-lfm2"])
def executable(request):
    with cortiq.load(f"synthetic:{request.param}", backend="cpu", threads=1) as model:
        yield model.executable


@pytest.fixture
def producer(executable):
    made = ExecutableProducer(executable, 64)
    yield made
    made.close()


@pytest.fixture
def drafted(executable):
    made = DraftedProducer(executable, executable, 64)
    yield made
    made.close()


@pytest.fixture(scope="module")
def rows(executable):
    """Logits after each of IDS, one token at a time."""
    producer = ExecutableProducer(executable, 64)
    found = np.array([producer.produce(token, i) for i, token in enumerate(IDS)])
    exported = producer.state.export()
    producer.close()
    return found, exported


def same_state(producer, exported):
    ours = producer.state.export()
    assert ours.lengths == exported.lengths and np.array_equal(ours.tokens, exported.tokens)
    for name, slot in exported.slots.items():
        mine = ours.slots[name]
        pairs = [(mine, slot)] if isinstance(slot, np.ndarray) else zip(
            vars(mine).values(), vars(slot).values(), strict=True
        )  # fmt: skip
        assert all(same_bits(a, b) for a, b in pairs)


def test_what_is_offered_is_the_protocols():
    for protocol, kinds in (
        (LogitProducer, (ExecutableProducer, DraftedProducer, ScriptedProducer)),
        (ChunkedPrefillRunner, (ExecutableProducer, DraftedProducer, ScriptedProducer)),
        (SpeculativeProducer, (DraftedProducer,)),
    ):
        members = [name for name in vars(protocol) if not name.startswith("_")]
        for kind in kinds:
            lacking = [m for m in members if not hasattr(kind, m) and m != "vocabulary"]
            assert not lacking, (kind, lacking)


@pytest.mark.parametrize("chunks", [[24], [5, 19], [1, 7, 16], [23, 1]])
def test_chunks_leave_the_bits_of_single_tokens(producer, rows, chunks):
    start = 0
    for size in chunks:
        last = producer.prefill_chunk(IDS[start : start + size], start)
        start += size
        assert same_bits(last, rows[0][start - 1])
    same_state(producer, rows[1])


def test_prefill_without_logits_leaves_the_same_state(producer, rows):
    for i, token in enumerate(IDS[:10]):
        producer.produce_prefill(token, i)
    assert producer.prefill_chunk_with_status(IDS[10:20], 10, is_final_prompt_chunk=False) is None
    last = producer.prefill_chunk_with_status(IDS[20:], 20, is_final_prompt_chunk=True)
    assert same_bits(last, rows[0][-1])
    same_state(producer, rows[1])


def test_empty_chunks_and_wrong_positions_are_errors(producer):
    with pytest.raises(RequestError, match="an empty chunk"):
        producer.prefill_chunk([], 0)
    producer.prefill_chunk(IDS[:3], 0)
    with pytest.raises(RequestError, match="has 3 rows, tokens for position 5 came"):
        producer.produce(1, 5)


def test_reuse_commits_and_is_keyed_on_what_was_fed(producer, rows):
    producer.prefill_chunk(IDS, 0)
    other = [*IDS[:20], 63, 62, 61]
    reused = producer.try_reuse_prefix(other)
    assert reused == producer.state.length() <= 20
    assert reused == 20 or any("ring" in str(s).lower() for s in
                               producer.executable.program.slots.values())  # fmt: skip
    last = producer.prefill_chunk(IDS[reused:], reused)
    assert same_bits(last, rows[0][-1])
    assert producer.try_reuse_prefix(IDS) <= len(IDS) - 1
    assert producer.try_reuse_prefix([9, *IDS]) == 0
    producer.reset()
    assert producer.try_reuse_prefix(IDS) == 0
    assert not producer.session_slot_evicted()


def test_rollback_is_never_having_gone_ahead(producer, rows):
    producer.prefill_chunk(IDS[:10], 0)
    point = producer.checkpoint()
    producer.verify([1, 2, 3, 4], 10)
    producer.rollback(point)
    assert producer.fed == IDS[:10]
    assert same_bits(producer.prefill_chunk(IDS[10:], 10), rows[0][-1])
    same_state(producer, rows[1])


@pytest.mark.parametrize("keep", [0, 1, 3, 5])
def test_retaining_rollback_keeps_rows_whose_logits_stay_right(producer, rows, keep):
    producer.prefill_chunk(IDS[:10], 0)
    point = producer.checkpoint()
    feed = [*IDS[10 : 10 + keep], *([63] * (5 - keep))]
    verified = producer.verify(feed, 10)
    assert same_bits(verified[:keep], rows[0][10 : 10 + keep])
    producer.rollback_retaining(point, keep)
    assert producer.fed == IDS[: 10 + keep]
    assert same_bits(producer.prefill_chunk(IDS[10 + keep :], 10 + keep), rows[0][-1])
    same_state(producer, rows[1])


def test_retaining_rollback_never_degrades_silently(producer):
    producer.prefill_chunk(IDS[:4], 0)
    point = producer.checkpoint()
    with pytest.raises(RequestError, match="2 rows after position 4 are to stay"):
        producer.rollback_retaining(point, 2)
    producer.verify([1, 2], 4)
    with pytest.raises(RequestError, match="the last verify had 2 from 4"):
        producer.rollback_retaining(point, 3)
    producer.rollback_retaining(point, 1)
    with pytest.raises(RequestError, match="the last verify had 0 from 0"):
        producer.rollback_retaining(point, 1)


def test_a_loop_over_the_protocol_speculates_to_the_plain_text(drafted, producer):
    """Draft, verify, accept, keep: greedy, with a drafter that is the target, and one that errs."""
    plain, token = [], int(producer.prefill_chunk(IDS[:9], 0).argmax())
    while len(plain) < 20:
        plain.append(token)
        token = int(producer.produce(token, 8 + len(plain)).argmax())
    drafted.prefill_chunk_priming_drafter(IDS[:5], 0, IDS[5])
    logits = drafted.prefill_chunk_priming_drafter(IDS[5:9], 5, None)
    drafted.prime_drafter(int(logits.argmax()), 8)
    out, held = [int(logits.argmax())], 0
    while len(out) < 20:
        position = 8 + len(out)
        draft, last = [], out[-1]
        for i in range(3):
            last = int(drafted.draft_step(last, position + i).argmax())
            draft.append((last + (len(out) % 4 == 2 and i == 1)) % drafted.vocabulary)
            last = draft[-1]
        point = drafted.checkpoint()
        drawn = [int(row.argmax()) for row in drafted.verify([out[-1], *draft], position)]
        kept = next((i for i, d in enumerate(draft) if d != drawn[i]), len(draft))
        drafted.rollback_retaining(point, kept + 1)
        drafted.record_committed([out[-1], *draft[:kept]], position)
        drafted.rewind_drafter(position + kept + 1)
        for at in range(len(drafted.drafter.fed), position + kept + 1):
            drafted.prime_drafter(0, at)
        out += drawn[: kept + 1]
        held += kept
    assert out[:20] == plain
    assert held > 6
    with pytest.raises(RequestError, match=r"ids .* are held from position 0"):
        drafted.record_committed([60, 60], 0)
    with pytest.raises(RequestError, match="step by step"):
        drafted.draft_block(1, 2, 3)
    assert not drafted.drafts_block_passes()


def test_scripted_producer_replays_rows_and_says_when_there_are_no_more():
    rows = [np.arange(3), np.arange(3)[::-1]]
    script = ScriptedProducer(rows, 3)
    assert script.prefill_chunk([1, 2, 3], 0).tolist() == [0, 1, 2]
    assert script.produce(4, 3).argmax() == 0
    with pytest.raises(RequestError, match="the script has 2 rows"):
        script.produce(5, 4)
    script.reset()
    script.produce_prefill(1, 0)
    assert script.prefill_chunk_with_status([2], 1, is_final_prompt_chunk=False) is None
    with pytest.raises(RequestError, match="row 1 has 2 logits, the vocabulary 3"):
        ScriptedProducer([np.zeros(3), np.zeros(2)], 3)
    with pytest.raises(RequestError, match="an empty chunk"):
        ScriptedProducer(rows, 3).prefill_chunk([], 0)
