"""The logit of a drawn token and what the engine makes of it, and steps that wait for the host."""

from __future__ import annotations

import numpy as np
import pytest
from engines import Deferred, engine, executable, facts, prompt, request

from cortiq.backend import Argmax, Batch, Draw, DrawnLogit, Named, Row, Status
from cortiq.numerics import sampling
from cortiq.numerics.contract import F32, OutOfDomainError
from cortiq.numerics.masks import mask_of
from cortiq.numerics.sampling import Sampling

VOCABULARY = 320


@pytest.mark.parametrize("calibration", [1.0, 0.3, 7.0])
def test_the_difference_is_the_logarithm_of_the_softmax(calibration):
    x = (4 * np.random.default_rng(3).standard_normal(1000)).astype(F32)
    scale = DrawnLogit(calibration).scale
    exact = x.astype(np.float64) / calibration
    whole = np.log(np.exp(exact - exact.max()).sum()) + exact.max()
    for token in (0, int(x.argmax()), 999):
        logit, total = sampling.drawn_logit(x, token, scale)
        assert logit.dtype == total.dtype == F32
        assert logit == F32(x[token] * scale)
        assert abs(float(logit) - float(total) - (exact[token] - whole)) < 2e-5


def test_a_scale_that_leaves_the_domain_is_a_fault():
    x = np.array([2.0**49, 1.0], F32)
    assert sampling.drawn_logit(x, 0)[0] == x[0]
    with pytest.raises(OutOfDomainError):
        sampling.drawn_logit(x, 1, F32(2))


def test_it_is_of_the_token_that_was_drawn_and_needs_one():
    on = executable("reference")
    state = on.open(8)
    draw = Draw(Sampling(seed=4), mask=mask_of(range(0, VOCABULARY, 5), VOCABULARY))
    wants = (DrawnLogit(), draw)
    row = on.forward(Batch([Row(state, 0, 7, wants)])).result().rows[0]
    state.rewind(0)
    logits = on.forward(Batch([Row(state, 0, 7, (Named("logits"),))])).result().rows[0]
    x = logits[Named("logits")]
    assert row[draw] % 5 == 0
    assert tuple(row[DrawnLogit()]) == sampling.drawn_logit(x, row[draw])
    for refused in ((DrawnLogit(),), (Argmax(), DrawnLogit(0.0)), (Argmax(), DrawnLogit(-1.0))):
        outcome = on.forward(Batch([Row(state, 1, 7, refused)])).result().outcomes[state]
        assert outcome.status is Status.DECLINED
    state.release()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"temperature": 0.8, "confidence": True}, None),
        ({"temperature": 0.9, "top_k": 9, "repetition_penalty": 1.3}, None),
        ({"temperature": 0.9, "masks": True}, "masks"),
    ],
)
def test_only_what_needs_the_ids_waits_for_the_host_and_says_so(options, reason):
    masked = options.pop("masks", False)
    wanted = request(prompt(1, 5), max_tokens=6, **options)
    if masked:
        allowed = mask_of(range(100), VOCABULARY)
        wanted = type(wanted)(**{**vars(wanted), "masks": lambda ids: allowed})
    slow = Deferred(executable())
    with engine(slow) as on:
        sequence, other = on.submit(wanted), on.submit(request(prompt(2, 7), 4))
        on.run()
    facts(sequence), facts(other)
    assert slow.most == (1 if reason else 2)
    for stats in (sequence.stats, other.stats):
        said = stats.as_dict().get("steps_that_waited_for", {})
        assert set(said) == ({reason} if reason else set())
    assert sequence.stats.waited.total() >= (5 if reason else 0)
