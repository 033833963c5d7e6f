"""Merging by score: the rule itself, sentencepiece as the oracle, and what is cut out before."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import SCORED, TEXTS, UNSPACED, pieces_of, score_metadata

from cortiq.errors import TokenizerError
from cortiq.tokenizer import Tokenizer
from cortiq.tokenizer.score_merge import ScoreEncoder


@settings(max_examples=300)
@given(st.text().filter(lambda text: "▁" not in text))
def test_score_based_round_trip(text):
    assert SCORED.decode(SCORED.encode(text)) == text


@given(st.text("abcd []", max_size=40))
def test_round_trip_around_user_defined_tokens(text):
    assert UNSPACED.decode(UNSPACED.encode(text)) == text


def test_control_text_never_merges_into_a_control_token():
    metadata = score_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("ab")] = "other"
    tokens[1] = "ab"  # BOS, written as merging could write it
    assert 1 not in Tokenizer.from_gguf(metadata).encode("ab", add_bos=False)


def test_user_defined_tokens_are_cut_longest_first():
    assert pieces_of(SCORED, "[ab]", add_bos=False) == ["[ab]"]
    assert pieces_of(SCORED, "[ab[ab]", add_bos=False) == ["[ab", "[ab]"]
    # "ab]cd" is the longest, so it wins over "[ab]", which begins further left.
    assert pieces_of(SCORED, "[ab]cd", add_bos=False)[-1] == "ab]cd"


def test_the_best_score_merges_first_then_the_leftmost():
    assert pieces_of(UNSPACED, "abc", add_bos=False) == ["a", "bc"]  # bc -0.5 before ab -1.0
    assert pieces_of(UNSPACED, "aaa", add_bos=False) == ["aa", "a"]
    assert pieces_of(UNSPACED, "aaaaaa", add_bos=False) == ["aaaa", "aa"]
    assert pieces_of(UNSPACED, " ab", add_bos=False) == [" ab"]


def test_a_space_goes_before_a_text_and_after_what_was_cut_out():
    # As llama.cpp does it; decoding takes only the first of these spaces away.
    assert pieces_of(SCORED, "b[ab]b", add_bos=False) == [" ", "b", "[ab]", " ", "b"]
    assert SCORED.decode(SCORED.encode("b[ab]b")) == "b[ab] b"
    assert pieces_of(UNSPACED, "b[ab]b", add_bos=False) == ["b", "[ab]", "b"]


def slow_merge(text: str, scores: dict[str, float]) -> list[str]:
    """The rule word by word: look at all adjacent pairs, merge the best, begin again."""
    pieces = list(text)
    while True:
        pairs = [(a + b, at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        best, at = min(pairs, key=lambda pair: (-scores[pair[0]], pair[1]))
        pieces[at : at + 2] = [best]


@settings(max_examples=300)
@given(st.data())
def test_merging_equals_the_slow_rule(data):
    letters = st.text("ab▁", min_size=1, max_size=5)
    pieces = sorted(data.draw(st.sets(letters, max_size=25)) | {"a", "b", "▁"})
    scores = [float(data.draw(st.integers(-6, 0))) for _ in pieces]
    encoder = ScoreEncoder({p: i for i, p in enumerate(pieces)}, scores, {}, None)
    text = data.draw(st.text("ab▁", max_size=25))
    assert [pieces[i] for i in encoder.encode(text)] == slow_merge(
        text, dict(zip(pieces, scores, strict=True))
    )


def test_ids_equal_sentencepiece(tmp_path):
    spm = pytest.importorskip("sentencepiece")
    words = ["the", "cat", "sat", "on", "mat", "that", "other", "cats", "had", "once", "then"]
    chooser = random.Random(7)
    lines = [" ".join(chooser.choices([*words, "Zürich", "x1", "12"], k=9)) for _ in range(300)]
    (tmp_path / "text").write_text("\n".join(lines))
    spm.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "m"),
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["[x]"],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    model = spm.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ids = range(model.get_piece_size())
    kinds = [
        2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1
        for i in ids
    ]
    kinds[model.piece_to_id("[x]")] = 4
    ours = Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
            "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
            "tokenizer.ggml.token_type": kinds,
        }
    )
    for text in [*lines[:50], *TEXTS[1:], "  two  spaces ", "cat" * 500, "<s>", "<0x41>"]:
        expected = model.encode(text)
        assert ours.encode(text, add_bos=False) == expected
        assert ours.decode(expected) == model.decode(expected)


def test_without_byte_tokens_the_unknown_token_stands_in():
    tokens, scores = ["<unk>", "<s>", "</s>", "▁", "a"], [0.0] * 5
    changes = {"tokens": tokens, "scores": scores, "token_type": [2, 3, 3, 1, 1]}
    tokenizer = Tokenizer.from_gguf(score_metadata(**changes))
    assert tokenizer.encode("aé", add_bos=False) == [3, 4, 0]
    assert tokenizer.unknown_id == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_must_be_numbers(bad):
    scores = score_metadata()["tokenizer.ggml.scores"]
    with pytest.raises(TokenizerError, match="finite"):
        Tokenizer.from_gguf(score_metadata(scores=[bad, *scores[1:]]))
