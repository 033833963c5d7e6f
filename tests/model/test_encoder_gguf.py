"""GGUF files of encoders have the rows, vectors and relevances of the folders they come from."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("gguf")

import numpy as np
import transformers
from encoder_folders import CASES, ideal_rows, written
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
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Engine

import cortiq
from cortiq.errors import FormatError, TokenizerError, UnsupportedError
from cortiq.tokenizer import Tokenizer

IDS = np.random.default_rng(1).integers(5, 90, 40).tolist()
NOT_IN_FILES = ("bert classifier", "bert of odd widths", "nomic of odd widths")
"""A pooler, and activations of folders."""
READ = [name for name in CASES if name not in NOT_IN_FILES]
CHANGES = {"modernbert classifier": {
    "norm_bias": False, "attention_bias": False, "mlp_bias": False, "classifier_bias": False,
    "classifier_activation": "gelu",
}}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_file_has_the_rows_of_its_folder(name, tmp_path):
    """Those of transformers in double, by `test_encoders.py`."""
    model = written(tmp_path / "folder", name, **CHANGES.get(name, {}))
    write_encoder(tmp_path / "model.gguf", tmp_path / "folder")
    for want in ("hidden", *(("scores",) if hasattr(model, "classifier") else ())):
        found, wanted = (ideal_rows(tmp_path / end, IDS, want) for end in ("model.gguf", "folder"))
        assert np.array_equal(found, wanted) and np.ptp(wanted) > 0.1


@pytest.mark.parametrize(
    ("name", "key", "value", "error", "words"),
    [
        ("bert", "pooling_type", 9, FormatError, "bert.pooling_type is 9"),
        ("bert", "attention.causal", True, UnsupportedError, "attention.causal"),
        ("bert", "context_length", 63, FormatError, "position_embd.weight"),
        ("modernbert classifier", "classifier.pooling_type", 3, UnsupportedError, "mean nor cls"),
        ("modernbert", "attention.sliding_window_pattern", [True], FormatError, "every_n_layers"),
        ("bert classifier", "x", None, UnsupportedError, "pooler is in no GGUF"),
    ],
)  # fmt: skip
def test_what_a_file_asks_for_in_vain_is_refused(name, key, value, error, words, tmp_path):
    written(tmp_path / "folder", name, **CHANGES.get(name, {}))

    def change(values, tensors):
        values |= {key: value, **word_pieces([*PIECES, *map(str, range(73))], SPECIAL)}

    write_encoder(tmp_path / "model.gguf", tmp_path / "folder", change)
    with pytest.raises(error, match=words):
        cortiq.load(str(tmp_path / "model.gguf"), backend="reference")


@pytest.mark.parametrize("lower", [True, False])
def test_word_pieces_are_those_of_berts_tokenizer(lower):
    file = word_pieces(PIECES, SPECIAL) | {"tokenizer.ggml.normalizer.lowercase": lower}
    own = Tokenizer.from_gguf(file)
    oracle = transformers.BertTokenizer(
        vocab={piece: n for n, piece in enumerate(PIECES)}, do_lower_case=lower
    )
    for text in TEXTS:
        assert list(own.framed(text).ids) == oracle(text)["input_ids"]
        pair, wanted = own.framed(text, "a city"), oracle(text, "a city")
        assert list(pair.ids) == wanted["input_ids"]
        assert list(pair.segments) == wanted["token_type_ids"]
    assert own.decode(own.framed("a citys").ids) == "a citys"
    assert own.token_id("[CLS]") not in own.encode("[CLS]", add_bos=False)
    kept = own.encode("café", add_bos=False)
    assert kept == ([18, 19] if lower else [1])  # accents go with the case


def sentence_oracle():
    """XLM-R's tokenizer.json of these pieces, as it is published."""
    engine = Engine(models.Unigram(list(zip(SENTENCE, SCORES, strict=True)), unk_id=3))
    engine.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    engine.add_special_tokens(SENTENCE[:4])
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )  # fmt: skip
    return engine


def test_sentence_pieces_are_those_of_xlm_rs_tokenizer():
    own, oracle = Tokenizer.from_gguf(sentence_pieces(SENTENCE, SCORES)), sentence_oracle()
    for text in ("paris is a city", "  a  paris ", "icy z a", "dad"):
        assert list(own.framed(text).ids) == oracle.encode(text).ids
        pair = own.framed(text, "a ci")
        assert list(pair.ids) == oracle.encode(text, "a ci").ids and not any(pair.segments)
    assert own.decode(own.framed("paris is a city").ids) == "paris is a city"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.scores": [0.0] * 3}, "3 entries for 17"),
        ({"tokenizer.ggml.scores": [float("nan")] * 17}, "not a finite number"),
        ({"tokenizer.ggml.seperator_token_id": 17}, "out of range"),
        ({"tokenizer.ggml.precompiled_charsmap": [1000]}, "array of bytes"),
        ({"tokenizer.ggml.precompiled_charsmap": [1, 2, 3]}, "not a tokenizer"),
    ],
)
def test_fields_of_sentence_pieces_are_checked(changes, words):
    with pytest.raises(TokenizerError, match=words):
        Tokenizer.from_gguf(sentence_pieces(SENTENCE, SCORES) | changes)


def with_pieces(folder):
    """Give a folder the tokenizer of `PIECES`; return its metadata, with unused pieces after."""
    oracle = transformers.BertTokenizer(vocab={piece: n for n, piece in enumerate(PIECES)})
    oracle._tokenizer.save(str(folder / "tokenizer.json"))
    unused = [f"[unused{n}]" for n in range(2, 75)]
    return word_pieces([*PIECES, *unused], SPECIAL)


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (2, "cls"), (3, "last"), (0, "mean")])
def test_texts_have_the_vectors_of_the_folder(number, pooling, tmp_path):
    written(tmp_path / "folder", "bert")
    tokens = with_pieces(tmp_path / "folder")
    write_encoder(
        tmp_path / "model.gguf", tmp_path / "folder",
        lambda values, _: values.update({"pooling_type": number, **tokens}),
    )  # fmt: skip
    with cortiq.load(str(tmp_path / "model.gguf"), backend="cpu") as loaded:
        assert loaded.pooling() == pooling
        found = loaded.embed(TEXTS)
    with cortiq.load(str(tmp_path / "folder"), backend="cpu") as loaded:
        assert np.array_equal(found, loaded.embed(TEXTS, pooling=pooling))


@pytest.mark.parametrize("name", ["roberta classifier", "modernbert classifier"])
def test_documents_have_the_relevance_of_the_folder(name, tmp_path):
    pooled = {"classifier_pooling": "mean"} if "modern" in name else {}
    written(tmp_path / "folder", name, num_labels=1, **pooled, **CHANGES.get(name, {}))
    tokens = with_pieces(tmp_path / "folder")
    change = lambda values, _: values.update(tokens)  # noqa: E731
    write_encoder(tmp_path / "model.gguf", tmp_path / "folder", change)
    scores = []
    for path in ("model.gguf", "folder"):
        with cortiq.load(str(tmp_path / path), backend="cpu") as loaded:
            scores.append(loaded.rerank("is paris a city", TEXTS))
    assert scores[0] == scores[1] and len(set(scores[0])) == len(TEXTS)


def test_a_decoder_for_embeddings_ends_a_text_as_its_file_says():
    """Qwen3-Embedding: `add_eos_token`."""
    file = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "<|endoftext|>"],
        "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.token_type": [1, 1, 1, 3],
        "tokenizer.ggml.eos_token_id": 3,
    }  # fmt: skip
    assert Tokenizer.from_gguf(file).framed("ab").ids == (2,)
    ended = Tokenizer.from_gguf(file | {"tokenizer.ggml.add_eos_token": True})
    assert ended.framed("ab").ids == (2, 3) and ended.encode("ab") == [2]
    assert ended.framed("ab", "a").ids == (2, 3, 0, 3)
    with pytest.raises(TokenizerError, match="seperator_token_id"):
        Tokenizer.from_gguf(file | {"tokenizer.ggml.add_sep_token": True})
