"""llama.cpp itself computes the same logits of a GGUF file, for every architecture."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

from llama_peer import difference, samples, why_not, write_sample

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def llama_cpp():
    """Skip without llama.cpp, and say how to have it."""
    if reason := why_not():
        pytest.skip(reason)


@pytest.mark.parametrize("sample", samples(), ids=str)
def test_logits_are_those_of_llama_cpp(sample, tmp_path):
    path, ids = write_sample(sample, tmp_path)
    assert difference(sample, path, ids) < sample.peer.bound
