"""The acceptance list of docs/acceptance.md, as far as it is about generating: by its numbers.

Models: `tiny-ties` repeats rows of its table and head, so that logits tie exactly and every path
must break ties alike; `tiny-mimo` has per-layer geometry, windows, sinks and experts.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from scripted import tiny_program

import cortiq
from cortiq.backend import CompileOptions, Named
from cortiq.engine.drafters.model import ModelDrafter
from cortiq.engine.drafters.scripted import ScriptedDrafter
from cortiq.engine.drafting import FixedDepth, Speculation
from cortiq.engine.engine import Engine
from cortiq.engine.request import make_request
from cortiq.errors import RequestError
from cortiq.model.model import Model
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

    def states():
        state = ties.executable.open(8)
        found = completed(ties.executable, rows(state, [1, 7, 11, 19], (Named("hidden"),)))
        state.release()
        return np.array([row[Named("hidden")] for row in found])

    one = states()
    assert one.shape == (4, 8) and np.isfinite(one).all()
    assert np.array_equal(one.view(np.uint32), states().view(np.uint32))
    ties.logits([1, 7, 11])


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
    assert all(0 < p < 1 for p in made.confidence)
    ids = [*made.prompt_ids, *made.token_ids]
    logits = np.asarray(ties.logits(ids[:-1]), np.float64)[len(made.prompt_ids) - 1 :]
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    true = weights[np.arange(10), made.token_ids] / weights.sum(axis=1)
    np.testing.assert_allclose(made.confidence, true, rtol=1e-9)
    flatter = ties.generate("abcd", confidence=True, calibration=2.0, **told).confidence
    assert max(flatter) < max(made.confidence)


def test_t33_logits_say_the_first_greedy_token(ties):
    for prompt in ("abcd", "zyx", [1, 2, 3]):
        assert ties.generate(prompt, max_tokens=1).token_ids[0] == ties.logits(prompt)[-1].argmax()


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
