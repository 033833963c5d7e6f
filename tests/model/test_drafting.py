"""Drafting on a real model: the plain text, from fewer runs of the model."""

from __future__ import annotations

import pytest

import cortiq
from cortiq.bench.drafts import TASKS


@pytest.fixture(scope="module")
def model(smollm2_path):
    with cortiq.load(smollm2_path, backend="cpu") as opened:
        yield opened


def test_a_file_that_is_copied_takes_few_steps(model):
    (copy,) = (task.ids(model) for task in TASKS if task.name == "copy")
    plain = model.generate(copy, max_tokens=100)
    made = model.generate(copy, max_tokens=100, draft="auto")
    assert (made.token_ids, made.digest) == (plain.token_ids, plain.digest)
    drafts = made.stats.drafts
    steps = drafts.plain_rounds + drafts.drafters["lookup"].rounds
    assert len(made.token_ids) > 2.5 * steps


def test_sampled_drafts_of_the_same_model_hold_and_change_nothing(model, smollm2_path):
    told = {"max_tokens": 24, "temperature": 0.9, "top_p": 0.95, "seed": 5}
    prompt = "Once upon a time"
    plain = model.generate(prompt, **told)
    made = model.generate(prompt, draft=f"model:{smollm2_path}", draft_depth=3, **told)
    assert (made.token_ids, made.digest) == (plain.token_ids, plain.digest)
    tally = made.stats.drafts.drafters["model+lookup"]
    assert tally.accepted >= 0.9 * tally.drafted > 0
