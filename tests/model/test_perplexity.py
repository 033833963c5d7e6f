"""Perplexity of the two real files by the recipe, against float32 activations.

The whole recipe (3,072 tokens a model) is marked slow: `pytest -m slow tests/model`. The suite
scores the first tokens of its first window and compares them with what the whole run gave.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import cortiq

GPL3 = Path("/usr/share/common-licenses/GPL-3")
GPL3_SHA256 = "3972dc9744f6499f0f9b2dbf76696f2ae7ad8af9b23dde66d6af86c9dfb36986"
FLOAT32 = {"smollm2": 24.0829, "gemma3": 18.5526}
"""By an independent program: float32 activations on the dequantised weights."""
LARGEST_CHANGE = 0.0005
BEGINNING = {
    "smollm2": (3.330973412533094, "22d8ebdbc9f87897"),
    "gemma3": (2.66566901287274, "e7892d434e4507a2"),
}
"""Contract version 1: mean −ln p of the first 128 tokens, and a hash of the most likely ones."""


@pytest.fixture(scope="module")
def text():
    if not GPL3.is_file() or hashlib.sha256(GPL3.read_bytes()).hexdigest() != GPL3_SHA256:
        pytest.skip("the GPL-3 text is not where Debian has it")
    return GPL3.read_text()


@pytest.fixture(params=FLOAT32)
def name(request):
    return request.param


@pytest.fixture
def model(request, name):
    path = request.getfixturevalue(f"{name}_path")
    with cortiq.load(str(path), backend="reference") as opened:
        yield opened


def test_beginning_of_the_recipe(model, text, name):
    """The double-precision logarithm of the statistic is not the contract's; its argmax is."""
    made = model.score(text, window=128, windows=1)
    nll, argmax = BEGINNING[name]
    assert made.bos is (name == "gemma3")
    assert made.nll == pytest.approx(nll, rel=1e-12)
    assert hashlib.sha256(json.dumps(made.argmax).encode()).hexdigest()[:16] == argmax


@pytest.mark.slow
def test_perplexity_is_that_of_float32_activations(model, text, name):
    made = model.score(text, window=512, windows=6)
    assert made.tokens == 3072
    assert made.perplexity == pytest.approx(FLOAT32[name], rel=LARGEST_CHANGE)


PROMISED = {
    ("smollm2", "w4"): 0.02,
    ("gemma3", "w4-5"): 0.042,
    ("smollm2", "w8"): 0.005,
    ("gemma3", "w8"): 0.005,
}
"""Largest change of perplexity by formats that weights are converted to."""
BY_LLAMA_CPP = {
    ("smollm2", "w4"): 24.3478,
    ("gemma3", "w4"): 21.9372,
    ("gemma3", "w4-5"): 19.3150,
}
"""Layouts with the codes that llama.cpp's search finds: `q4_k` and `q4_k-5` of
`benchmarks/weight_formats.py`."""


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["w4", "w4-5", "w8"])
def test_perplexity_of_converted_weights_is_as_promised(weight_format, name, text, request):
    path = request.getfixturevalue(f"{name}_path")
    with cortiq.load(str(path), backend="reference", weight_format=weight_format) as opened:
        perplexity = opened.score(text, window=512, windows=6).perplexity
    assert perplexity <= BY_LLAMA_CPP.get((name, weight_format), perplexity)
    if (name, weight_format) in PROMISED:
        assert perplexity == pytest.approx(FLOAT32[name], rel=PROMISED[name, weight_format])
