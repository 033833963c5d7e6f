"""Embeddings and likelihoods: the same bits on every backend, and what float64 says they are."""

from __future__ import annotations

import numpy as np
import pytest
from engines import backends

import cortiq
from cortiq.errors import RequestError

MODELS = ("tiny-llama", "tiny-lfm2")
CONTEXT = [5, 17, 250, 3, 99, 4]
CONTINUATIONS = ([7, 8, 9], [200], [11] * 70)
TEXTS = ("A cat", "Something much longer, so that several chunks of rows are read. " * 3)


def opened(name, backend="reference"):
    return cortiq.load(f"synthetic:{name}?seed=3", backend=backend, context=512)


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    with opened(request.param) as made:
        yield made


def log_softmax(logits):
    x = np.asarray(logits, np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_likelihoods_are_those_of_each_text_alone_in_float64(model):
    found = model.likelihoods(CONTEXT, CONTINUATIONS)
    for continuation, one in zip(CONTINUATIONS, found, strict=True):
        logits = model.logits([*CONTEXT, *continuation])[len(CONTEXT) - 1 : -1]
        expected = log_softmax(logits)[np.arange(len(continuation)), continuation]
        np.testing.assert_allclose(one.token_logprobs, expected, atol=2e-6, rtol=2e-6)
        assert one.logprob == pytest.approx(expected.sum(), rel=1e-6)
        assert one.greedy == (logits.argmax(axis=-1).tolist() == list(continuation))


def test_what_greedy_decoding_generates_is_greedy(model):
    made = model.generate(CONTEXT, max_tokens=6, ignore_eos=True)
    other = (made.token_ids[0] + 1) % 320
    first, second = model.likelihoods(CONTEXT, [made.token_ids, [other]])
    assert (first.greedy, second.greedy) == (True, False)


def test_a_context_of_one_token_will_do(model):
    (one,) = model.likelihoods([5], [[6, 7]])
    assert len(one.token_logprobs) == 2


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embedding_is_the_pooled_hidden_state(model, pooling):
    raw = model.embed(TEXTS[1], pooling=pooling, normalise=False)
    unit = model.embed(TEXTS[1], pooling=pooling)
    assert raw.dtype == unit.dtype == np.float32
    assert unit.shape == (model.program.trunk.values["hidden"].shape[0],)
    assert np.linalg.norm(unit.astype(np.float64)) == pytest.approx(1, abs=1e-6)
    wide = raw.astype(np.float64)
    np.testing.assert_allclose(unit, wide / np.linalg.norm(wide), rtol=2e-6)


def test_the_mean_is_that_of_every_prefix_of_the_text(model):
    ids = model.ids(TEXTS[0])
    rows = [model.embed(ids[: i + 1], pooling="last", normalise=False) for i in range(len(ids))]
    mean = model.embed(ids, normalise=False)
    np.testing.assert_allclose(mean, np.mean(np.stack(rows), axis=0, dtype=np.float64), atol=1e-6)


def test_a_list_gives_a_row_for_each(model):
    both = model.embed(list(TEXTS))
    assert both.shape[0] == 2
    for row, text in zip(both, TEXTS, strict=True):
        assert (
            row.tobytes() == model.embed(text).tobytes() == model.embed([model.ids(text)]).tobytes()
        )


@pytest.mark.parametrize("name", MODELS)
def test_every_backend_has_the_same_bits(name):
    found = {}
    for backend in backends():
        with opened(name, backend) as model:
            vectors = [model.embed(TEXTS[1], pooling=p).tobytes() for p in ("mean", "last")]
            found[backend] = vectors, model.likelihoods(CONTEXT, CONTINUATIONS)
    assert len(found) > 1, "needs a second backend"
    assert all(one == found["reference"] for one in found.values())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.embed(""), "empty"),
        (lambda m: m.embed([]), "empty"),
        (lambda m: m.embed("x", pooling="middle"), "pooling"),
        (lambda m: m.embed(["x", b"y"]), "text or token ids"),
        (lambda m: m.likelihoods([], [[1]]), "empty"),
        (lambda m: m.likelihoods([1], [[]]), "continuation is empty"),
        (lambda m: m.likelihoods([1], [[10**6]]), "vocabulary"),
        (lambda m: m.likelihoods([1] * 500, [[1] * 20]), "context"),
    ],
)
def test_what_cannot_be_read_is_said(model, call, words):
    with pytest.raises(RequestError, match=words):
        call(model)
