"""A forger who edits a receipt and makes its seals anew is found, or has made a true claim."""

from __future__ import annotations

import json
import random

import pytest

import cortiq
from cortiq.errors import FormatError
from cortiq.receipts.reader import parse_receipt
from cortiq.receipts.record import Receipt

FORGERIES = 250
PROMPT = list(b"a prompt to go on from")
OPTIONS = [
    {}, {"temperature": 6.0, "seed": 3, "stop": ["a"]}, {"logit_bias": {257: 50.0}},
    {"temperature": 3.0, "seed": 9, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2},
]  # fmt: skip


@pytest.fixture(scope="module")
def model():
    with cortiq.load("synthetic:tiny-llama", backend="reference") as opened:
        yield opened


@pytest.fixture(scope="module")
def receipts(model):
    return [model.generate(PROMPT, max_tokens=10, **options).receipt() for options in OPTIONS]


def places(value, path=()):
    """Every place in a JSON value, lists themselves and their items among them."""
    if isinstance(value, dict | list):
        if isinstance(value, list):
            yield path
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, name))
    else:
        yield path


def forged(value, rng):
    """Another value that a reader may take for one of the kind."""
    match value:
        case bool():
            return not value
        case int():
            return rng.choice([value + 1, value ^ 1, value * 2, 0, 2**31, 2**32 - 1, 2**53 - 1])
        case float():
            return rng.choice([value + 0.25, value / 2, 0.0, 1.0, 1.5, value * (1 + 2**-40)])
        case str():
            at = rng.randrange(len(value) + 1)
            return rng.choice([value[:at] + "0" + value[at + 1 :], value[:at], value[::-1]])
        case None:
            return rng.choice([1, "w8", "w16"])
    at = rng.randrange(len(value) + 1)
    return rng.choice([value[:at], value[:at] + value[at + 1 :], value[::-1], [*value, *value[:1]]])


def forgery(receipt, rng):
    """The receipt with one or two places of its claim changed, and true seals; None if refused."""
    top = json.loads(json.dumps(receipt.as_object()))
    for path in rng.sample(list(places(top["claim"])), rng.choice([1, 1, 2])):
        *parents, last = path
        holder = top["claim"]
        try:
            for name in parents:
                holder = holder[name]
            holder[last] = forged(holder[last], rng)
        except IndexError:  # the other change has shortened this list
            pass
    try:
        read = parse_receipt(json.dumps(top).encode(), "forged")
    except FormatError:
        return None
    return Receipt(read.claim, read.stated, read.claim.seals())


def is_true(model, claim):
    """Whether generating what is claimed gives what is claimed."""
    options = vars(claim.options) | {"seed": claim.options.seed or 0}
    if claim.finish_reason == "cancelled":
        options["max_tokens"] = len(claim.token_ids)
    made = model.generate(claim.prompt_ids, **options)
    same = (made.token_ids, made.step_digests) == (claim.token_ids, claim.digests)
    ends = (made.finish_reason, made.text) == (claim.finish_reason, claim.text)
    return same and (ends or claim.finish_reason == "cancelled")


@pytest.mark.parametrize("seed", range(4))
def test_forgeries_are_found_or_true(model, receipts, seed):
    rng, found = random.Random(seed), 0
    for _ in range(FORGERIES // 4):
        receipt = rng.choice(receipts)
        other = forgery(receipt, rng)
        if other is None or other.claim == receipt.claim:
            continue
        if model.verify(other):
            assert is_true(model, other.claim), other.claim
        else:
            found += 1
    assert found > 10
