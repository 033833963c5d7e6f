"""The acceptance list of docs/acceptance.md, as far as it is about generating: by its numbers.

Models: `tiny-ties` repeats rows of its table and head, so that logits tie exactly and every path
must break ties alike; `tiny-mimo` has per-layer geometry, windows, sinks and experts.
"""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
from scripted import tiny_program

import cortiq
from cortiq.backend import Batch, BatchResult, CompileOptions, Named, Outcome, Status
from cortiq.engine.drafters.model import ModelDrafter
from cortiq.engine.drafters.scripted import ScriptedDrafter
from cortiq.engine.drafting import FixedDepth, Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.request import make_request
from cortiq.errors import (
    BackendError,
    CortiqError,
    DeclinedError,
    RequestError,
    SequenceFailedError,
)
from cortiq.model.model import Model
from cortiq.numerics import ideal
from cortiq.numerics.layouts import Weight
from cortiq.options import GenerateOptions
from cortiq.tokenizer.tokenizer import byte_tokenizer
from cortiq_reference.backend import ReferenceBackend

MIMO_IDS = [(7 * i + 3) % 64 for i in range(9)]


@pytest.fixture(scope="module", params=["cpu", "reference"])
def ties(request):
    with cortiq.load("synthetic:tiny-ties", backend=request.param, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def mimo():
    with cortiq.load("synthetic:tiny-mimo", backend="cpu", threads=1) as model:
        yield model


def served(model: Model, ids, speculation, max_tokens, **options):
    """A generation with any drafter; returns the engine's sequence."""
    chosen = GenerateOptions(max_tokens=max_tokens, ignore_eos=True, **{"seed": 0} | options)
    request = make_request(ids, chosen, model.program, ())
    with Engine(model.executable, model.tokenizer) as engine:
        sequence = engine.submit(request, speculation=speculation)
        engine.run()
    assert sequence.error is None
    return sequence


def test_t10_hidden_states_of_a_text_are_the_same_every_time(ties):
    from sequences import completed, rows

    def states(model, ids):
        state = model.executable.open(8)
        found = completed(model.executable, rows(state, ids, (Named("hidden"),)))
        state.release()
        return np.array([row[Named("hidden")] for row in found])

    ids = [1, 7, 11, 19]
    other = states(ties, ids[::-1])
    one = states(ties, ids)
    assert one.shape == (4, 8) and np.isfinite(one).all()
    assert np.array_equal(one.view(np.uint32), states(ties, ids).view(np.uint32))
    with cortiq.load(ties.name, backend=ties.backend, threads=1) as fresh:
        assert np.array_equal(one.view(np.uint32), states(fresh, ids).view(np.uint32))
        assert np.array_equal(other.view(np.uint32), states(fresh, ids[::-1]).view(np.uint32))
        np.testing.assert_array_equal(ties.logits(ids), fresh.logits(ids))


def test_t10_hidden_states_are_those_after_the_norm(ties, mimo):
    """Each is the norm, in float64, of what the last layer puts out; and embeddings are of them."""
    from sequences import completed, rows

    for model, last in ((ties, "layers.1.out"), (mimo, "layers.3.out")):
        state, wants = model.executable.open(8), (Named("hidden"), Named(last))
        found = completed(model.executable, rows(state, [1, 7, 11, 19], wants))
        state.release()
        hidden, out = (np.array([row[want] for row in found], np.float64) for want in wants)
        eps = next(node.op.eps for node in model.program.trunk.nodes if node.name == "hidden")
        normed = ideal.rms_norm(out, np.ones(out.shape[1]), eps)
        assert np.abs(out - normed).max() > 0.1
        np.testing.assert_allclose(hidden, normed, rtol=2e-6, atol=1e-12)
        (embedding,) = model.embed([[1, 7, 11, 19]], pooling="last", normalise=False)
        np.testing.assert_array_equal(embedding, found[-1][Named("hidden")])


def test_t15_cancelled_before_the_start_and_not_the_next_time(ties):
    cancel = threading.Event()
    cancel.set()
    made = ties.generate("abc", max_tokens=4, cancel=cancel)
    assert (made.finish_reason, made.token_ids) == ("cancelled", ())
    cancel.clear()
    assert len(ties.generate("abc", max_tokens=4, cancel=cancel, ignore_eos=True).token_ids) == 4


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_t23_speculative_is_plain_greedy_through_exact_ties(ties, depth):
    told = {"max_tokens": 12, "ignore_eos": True, "repetition_penalty": 1.1}
    plain = ties.generate("abcdef", **told)
    assert plain.stats.drafts.drafted == 0
    logits = ties.logits("abcdef")
    assert np.array_equal(logits[:, :97], logits[:, 97:194])
    drafted = ties.generate("abcdef", draft=f"model:{ties.name}", draft_depth=depth, **told)
    assert drafted.token_ids == plain.token_ids and drafted.digest == plain.digest
    assert 0 < drafted.stats.drafts.accepted <= drafted.stats.drafts.drafted


def test_t23_a_draft_that_ties_with_the_token_is_not_the_token(ties):
    """Ids 97 apart have the same logits, bit for bit; the lower one is drawn, the other refused."""
    plain = served(ties, [97, 98, 99], None, 24)
    truth, made = plain.ids, slice(3, None)
    twins = truth[:3] + [t + 97 if i % 3 and t < 97 else t for i, t in enumerate(truth[made])]
    assert twins != truth
    drafter = ScriptedDrafter(lambda ids, count: twins[len(ids) : len(ids) + count])
    sequence = served(ties, [97, 98, 99], Speculation(drafter, lambda tokens: FixedDepth(3)), 24)
    assert sequence.ids == truth and sequence.output.digest == plain.output.digest
    assert 0 < sequence.stats.drafts.accepted < sequence.stats.drafts.drafted


def test_t24_where_all_logits_are_equal_drafts_and_target_take_the_same_one():
    program = tiny_program()
    weights = {"embed": np.ones((258, 4)), "head": np.full((258, 4), 0.01)}
    floats = {name: Weight.from_floats(w.astype(np.float32)) for name, w in weights.items()}
    executable = ReferenceBackend().compile(program, floats, CompileOptions(threads=1))
    request = make_request([97, 98], GenerateOptions(max_tokens=10, seed=0), program, ())
    speculation = Speculation(ModelDrafter(executable), lambda tokens: FixedDepth(3))
    with Engine(executable, byte_tokenizer(258)) as engine:
        sequence = engine.submit(request, speculation=speculation)
        engine.run()
    assert sequence.output.token_ids == [0] * 10
    assert sequence.stats.drafts.accepted == sequence.stats.drafts.drafted > 0


def test_t25_nothing_is_drafted_unless_it_is_asked_for(ties):
    made = ties.generate("abcdef", max_tokens=12)
    assert made.stats.drafts.drafters == {} and "drafting" not in made.stats.as_dict()


def test_t26_empty_prompts_are_errors(ties):
    for prompt in ("", []):
        with pytest.raises(RequestError, match="the prompt is empty"):
            ties.generate(prompt)


@pytest.mark.parametrize("draft", ["off", "lookup", "model:synthetic:tiny-ties"])
def test_t27_every_token_is_fed_exactly_once(ties, draft, monkeypatch):
    """The state ends with the prompt's rows and one less than were generated."""
    states = []
    opened = ties.executable.open
    monkeypatch.setattr(ties.executable, "open", lambda limit: states.append(opened(limit)) or
                        states[-1])  # fmt: skip
    lengths = []
    stream = ties.stream([97, 98, 99], max_tokens=9, ignore_eos=True, draft=draft)
    for _ in stream:
        lengths.append(states[0].length())
    generation = stream.generation
    assert generation.stats.prompt_tokens == 3 and len(generation.token_ids) == 9
    assert lengths[-1] == 3 + 9 - 1
    assert all(length >= 3 for length in lengths)


def test_t28_t29_a_seed_is_a_stream_whatever_came_before(ties):
    told = {"max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "ignore_eos": True}
    first = ties.generate("hello", seed=42, **told)
    ties.generate("something else", seed=1234, **told)
    assert ties.generate("hello", seed=42, **told).token_ids == first.token_ids
    assert any(ties.generate("hello", seed=s, **told).token_ids != first.token_ids
               for s in range(8))  # fmt: skip


@pytest.mark.parametrize("draft", ["off", "lookup", "model:synthetic:tiny-ties"])
def test_t31_t32_confidence_and_trace_have_a_true_entry_for_every_token(ties, draft):
    told = {"max_tokens": 10, "ignore_eos": True, "draft": draft}
    assert ties.generate("abcd", **told).trace == ()
    made = ties.generate("abcd", trace=True, confidence=True, **told)
    assert [row.index for row in made.trace] == list(range(10))
    assert tuple(row.token_id for row in made.trace) == made.token_ids
    assert tuple(row.confidence for row in made.trace) == made.confidence
    assert all(0 < p <= 1 for p in made.confidence)
    ids = [*made.prompt_ids, *made.token_ids]
    logits = np.asarray(ties.logits(ids[:-1]), np.float64)[len(made.prompt_ids) - 1 :]
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    true = weights[np.arange(10), made.token_ids] / weights.sum(axis=1)
    np.testing.assert_allclose(made.confidence, true, rtol=1e-5)
    flatter = ties.generate("abcd", confidence=True, calibration=2.0, **told).confidence
    assert max(flatter) < max(made.confidence)


def test_t33_logits_say_the_first_greedy_token(ties):
    for prompt in ("abcd", "zyx", [1, 2, 3]):
        assert ties.generate(prompt, max_tokens=1).token_ids[0] == ties.logits(prompt)[-1].argmax()


CALLS = {
    "score": lambda model, ids: model.score(ids, window=70).token_nll,
    "logits": lambda model, ids: model.logits(ids).tobytes(),
    "likelihoods": lambda model, ids: model.likelihoods(ids, [[5, 6], [5, 7]]),
    "embed": lambda model, ids: model.embed(ids).tobytes(),
    "generate": lambda model, ids: model.generate(ids, max_tokens=4, ignore_eos=True).digest,
}


@dataclasses.dataclass
class Failing:
    """A ticket of a batch that fails, or that the device loses."""

    batch: Batch
    status: Status | None

    def result(self) -> BatchResult:
        if self.status is None:
            raise OSError("the device is gone")
        outcomes = {row.state: Outcome(self.status, "planted") for row in self.batch.rows}
        return BatchResult(outcomes, [{}] * len(self.batch.rows))


@pytest.mark.parametrize("status", [Status.FAILED, Status.DECLINED, None], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_t53_a_call_that_fails_ends_with_its_error_and_the_next_is_fresh(
    mimo, call, status, monkeypatch
):
    """Whichever batch fails: no part of an answer, no state left behind, and no trace of it."""
    ids, forward = [(11 * i + 5) % 64 for i in range(150)], mimo.executable.forward
    expected, before = CALLS[call](mimo, ids), len(mimo.executable.states)
    errors = {Status.FAILED: SequenceFailedError, Status.DECLINED: DeclinedError}
    for at in range(9):
        batches = []

        def some_fail(batch, at=at, batches=batches):
            batches.append(batch)
            return Failing(batch, status) if len(batches) == at + 1 else forward(batch)

        monkeypatch.setattr(mimo.executable, "forward", some_fail)
        try:
            found = CALLS[call](mimo, ids)
        except CortiqError as error:
            assert len(batches) == at + 1
            assert isinstance(error, errors.get(status, BackendError))
            assert "planted" in str(error) or "the device is gone" in str(error)
        else:
            assert len(batches) <= at and at > 0  # no batch was left to fail
            assert found == expected
            break
        monkeypatch.setattr(mimo.executable, "forward", forward)
        assert len(mimo.executable.states) <= before
        assert CALLS[call](mimo, ids) == expected
    else:
        raise AssertionError("more batches than were to be tried")


def test_t42_planted_drafters_of_every_honesty_leave_the_greedy_text(mimo):
    plain = served(mimo, MIMO_IDS, None, 24, repetition_penalty=1.1)
    truth = plain.ids
    wrong = [t if i % 5 else (t + 1) % 64 for i, t in enumerate(truth)]
    found = {}
    for name, text in (("often", wrong), ("always", truth)):
        drafter = ScriptedDrafter(lambda ids, count, text=text: text[len(ids) : len(ids) + count])
        speculation = Speculation(drafter, lambda tokens: FixedDepth(6))
        sequence = served(mimo, MIMO_IDS, speculation, 24, repetition_penalty=1.1)
        assert sequence.ids == truth
        assert sequence.fed == plain.fed
        found[name] = sequence.stats.drafts.drafters["script"]
    often, always = found["often"], found["always"]
    assert 0 < often.accepted < often.drafted
    assert len(often.lengths) >= 3 and (often.accepted + often.rounds) / often.rounds > 1.5
    assert always.accepted == always.drafted
