"""Receipts of a real model: made on one backend, checked on the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from installed import backends

import cortiq

BACKENDS = [name for name in backends() if name in ("reference", "cpu")]
"""On tiny models every backend is tested (`tests/pure/test_receipts.py`)."""
OPTIONS = {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 11}


@pytest.fixture(scope="module")
def models(smollm2_path):
    opened = {name: cortiq.load(str(smollm2_path), backend=name) for name in BACKENDS}
    yield opened
    for model in opened.values():
        model.close()


@pytest.mark.parametrize("maker", BACKENDS)
def test_receipt_verifies_on_every_backend_and_a_forged_one_on_none(models, maker):
    made = models[maker].generate("The old lighthouse keeper", max_tokens=12, **OPTIONS)
    receipt = made.receipt()
    tokens = (*made.token_ids[:7], made.token_ids[7] ^ 1, *made.token_ids[8:])
    forged = replace(receipt, claim=replace(receipt.claim, token_ids=tokens))
    for model in models.values():
        assert model.verify(receipt)
        difference = model.verify(forged).differences[0]
        assert (difference.field, difference.step) == ("token_ids", 7)


def test_other_model_file_is_named(models, gemma3_path):
    receipt = models[BACKENDS[0]].generate("a", max_tokens=1).receipt()
    verdict = cortiq.verify(receipt, gemma3_path, backend=BACKENDS[0])
    assert [d.field for d in verdict.differences] == ["model_hash"]
