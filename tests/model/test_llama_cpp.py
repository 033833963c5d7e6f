"""llama.cpp itself computes the same logits or rows of a GGUF file, for every architecture."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import numpy as np
from encoder_folders import ideal_rows, written
from encoder_gguf import (
    PIECES,
    SCORES,
    SENTENCE,
    SPECIAL,
    TEXTS,
    sentence_pieces,
    word_pieces,
    write_encoder,
)
from llama_peer import difference, llama_rows, samples, why_not, write_sample

import cortiq
from cortiq.model.rerank import classified
from cortiq.tokenizer import Tokenizer
from cortiq.tokenizer.frames import FramedText

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


ROUNDED = 5e-3
"""GELU is looked up in a table of half floats."""
IDS = np.random.default_rng(1).integers(5, 90, 40).tolist()
UNUSED = [f"[unused{n}]" for n in range(2, 98 - len(PIECES))]
GELU = {
    "norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False,
    "classifier_activation": "gelu", "num_labels": 1,
}  # fmt: skip


def encoder(folder, name, changes):
    """The file of an encoder with BERT's tokenizer."""
    written(folder / "folder", name, **changes)
    tokens = word_pieces([*PIECES, *UNUSED], SPECIAL)
    write_encoder(folder / "model.gguf", folder / "folder", lambda values, _: values.update(tokens))
    return folder / "model.gguf"


@pytest.mark.parametrize(
    ("name", "changes"),
    [("bert", {}), ("roberta", {}), ("xlm-roberta", {}), ("nomic", {}), ("modernbert", {}),
     ("modernbert", {"hidden_activation": "silu"})],
)  # fmt: skip
def test_rows_of_encoders_are_those_of_llama_cpp(name, changes, tmp_path):
    path = encoder(tmp_path, name, changes)
    (found, said), wanted = llama_rows(path, IDS, "hidden"), ideal_rows(path, IDS)
    assert found is not None, said
    assert np.abs(found - wanted).max() < ROUNDED * wanted.std()


@pytest.mark.parametrize(
    ("name", "changes"),
    [("roberta classifier", {"num_labels": 1}), ("modernbert classifier", GELU),
     ("modernbert classifier", {**GELU, "classifier_pooling": "mean"})],
)  # fmt: skip
def test_classifiers_are_those_of_llama_cpp(name, changes, tmp_path):
    path = encoder(tmp_path, name, changes)
    found, said = llama_rows(path, IDS, "scores")
    assert found is not None, said
    with cortiq.load(str(path), backend="reference", weight_format="f32") as model:
        made = classified(model, FramedText(tuple(IDS), (0,) * len(IDS)))
    assert abs(made - 1 / (1 + np.exp(-found[0]))) < ROUNDED


@pytest.mark.parametrize("lower", [True, False])
def test_word_pieces_are_those_of_llama_cpp(lower, tmp_path):
    written(tmp_path / "folder", "bert")
    tokens = word_pieces([*PIECES, *UNUSED], SPECIAL)
    tokens |= {"tokenizer.ggml.normalizer.lowercase": lower}
    path = tmp_path / "model.gguf"
    write_encoder(path, tmp_path / "folder", lambda values, _: values.update(tokens))
    own = Tokenizer.from_gguf(tokens)
    for text in TEXTS:
        assert list(own.framed(text).ids) == llama_rows(path, [text], "ids")[0].tolist()


def test_sentence_pieces_are_those_of_llama_cpp(tmp_path):
    written(tmp_path / "folder", "xlm-roberta", vocab_size=len(SENTENCE))
    tokens = sentence_pieces(SENTENCE, SCORES)
    path = tmp_path / "model.gguf"
    write_encoder(path, tmp_path / "folder", lambda values, _: values.update(tokens))
    own = Tokenizer.from_gguf(tokens)
    for text in ("paris is a city", "  a  paris ", "icy z a", "dad"):
        assert list(own.framed(text).ids) == llama_rows(path, [text], "ids")[0].tolist()
