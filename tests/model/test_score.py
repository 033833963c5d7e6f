"""Scoring: the recipe against its definition, and the perplexity of the real files."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path

import numpy as np
import pytest

import cortiq
from cortiq.backend import Named
from cortiq.engine.session import Session
from cortiq.errors import RequestError
from cortiq.model.score import negative_log_likelihood

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 3
GPL3 = Path("/usr/share/common-licenses/GPL-3")
GPL3_SHA256 = "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986"


@pytest.fixture(scope="module")
def tiny():
    with cortiq.load("synthetic:tiny-llama", backend="reference", threads=1) as model:
        yield model


def token_nll(model, before, token):
    """−ln p of one token after a sequence of its own, in double precision."""
    with Session(model.executable, len(before)) as session:
        row = session.read(session.feed(before, (Named("logits"),)))
    x = [float(v) for v in row[Named("logits")]]
    return math.log(math.fsum(math.exp(v - x[token]) for v in x)), int(np.argmax(x))


@pytest.mark.parametrize("bos", ["no", "yes"])
def test_every_next_token_of_a_fresh_window_is_scored(tiny, bos):
    ids = tiny.tokenizer.encode(TEXT)
    made = tiny.score(TEXT, window=70, windows=2, bos=bos)
    first = [tiny.tokenizer.bos_id] if bos == "yes" else []
    assert made.tokens == 140 and len(made.argmax) == 140
    for at in (0, 1, 63, 64, 69, 70, 100, 139):
        start = at - at % 70
        expected, best = token_nll(tiny, [*first, *ids[start : at + 1]], ids[at + 1])
        assert made.token_nll[at] == pytest.approx(expected, rel=1e-12)
        assert made.argmax[at] == best


def test_summary_follows_from_the_tokens(tiny):
    made = tiny.score(TEXT, window=50)
    assert made.windows == (len(tiny.tokenizer.encode(TEXT)) - 1) // 50
    nll = np.array(made.token_nll)
    assert made.nll == pytest.approx(math.fsum(nll) / nll.size)
    assert made.perplexity == pytest.approx(math.exp(made.nll))
    spread = math.sqrt(math.fsum((nll - made.nll) ** 2) / (nll.size - 1))
    assert made.standard_error == pytest.approx(made.perplexity * spread / math.sqrt(nll.size))


def test_ids_are_scored_like_their_text(tiny):
    ids = tiny.tokenizer.encode(TEXT)
    assert tiny.score(ids, window=100) == tiny.score(TEXT, window=100)


def test_auto_follows_the_tokenizer(tiny):
    assert tiny.tokenizer.add_bos_default is False
    assert tiny.score(TEXT, window=50, windows=1).bos is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 1000}, "the text has"),
        ({"window": 1}, "window must be"),
        ({"bos": "maybe"}, "one of auto, yes, no"),
    ],
)
def test_bad_options_are_refused(tiny, options, message):
    with pytest.raises(RequestError, match=message):
        tiny.score(TEXT, **options)


def test_window_longer_than_the_context_is_refused():
    with (
        cortiq.load("synthetic:tiny-llama", backend="reference", context=64) as model,
        pytest.raises(RequestError, match="the context is 64"),
    ):
        model.score(TEXT, window=65)


def test_likelihood_of_extreme_logits_is_finite():
    logits = np.array([[0, 1e6, -1e6], [3, 3, 3]], np.float32)
    assert negative_log_likelihood(logits[0], 0) == 1e6
    assert negative_log_likelihood(logits[1], 2) == pytest.approx(math.log(3), rel=1e-15)


def gpl3():
    if not GPL3.is_file():
        pytest.skip("the GPL-3 text is not where Debian has it")
    text = GPL3.read_bytes()
    assert hashlib.sha256(text).hexdigest() == GPL3_SHA256
    return text.decode()


@pytest.mark.parametrize(
    ("name", "tokens", "bos"), [("smollm2", 7639, False), ("gemma3", 7562, True)]
)
def test_recipe_on_the_real_tokenizers(request, name, tokens, bos):
    """The text's number of tokens is that of shared recipe, and `auto` puts BOS as it does."""
    from cortiq.model.source import open_source
    from cortiq.options import LoadOptions

    source = open_source(str(request.getfixturevalue(f"{name}_path")), LoadOptions())
    assert len(source.tokenizer.encode(gpl3(), add_bos=False)) == tokens
    assert source.tokenizer.add_bos_default is bos
    source.close()


@pytest.mark.skipif(not os.environ.get("CORTIQ_FULL_TESTS"), reason="minutes: CORTIQ_FULL_TESTS=1")
@pytest.mark.parametrize(("name", "perplexity"), [("smollm2", 24.0829), ("gemma3", 18.5526)])
def test_perplexity_is_that_of_float32_activations(request, name, perplexity):
    """Six windows of 512 tokens, against the same weights dequantised and computed in float32."""
    path = str(request.getfixturevalue(f"{name}_path"))
    with cortiq.load(path, backend="reference") as model:
        made = model.score(gpl3(), window=512, windows=6)
    assert made.tokens == 3072
    assert made.perplexity == pytest.approx(perplexity, rel=5e-4)
