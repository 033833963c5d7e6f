"""Tokenizers from GGUF metadata and from bytes: ids, round trips, and errors that name the key."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortiq.errors import TokenizerError, UnsupportedError
from cortiq.tokenizer import Tokenizer, byte_tokenizer
from cortiq.tokenizer.byte_level import byte_alphabet
from cortiq.tokenizer.pretokenizers import PRE_TOKENIZERS
from cortiq.tokenizer.score_merge import ScoreEncoder

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "",
    " ",
    "Hello world! It's 12345 o'clock, isn't it?",
    "def f(x):\n\n\n    return x**2\t# two\r\n",
    "   leading, and trailing   ",
    "Café déjà vu — naïve ﬁ ½ 😊 👩‍👩‍👧 機械学習 한국어 עברית",
    "ab\u0301c \u00a0 \u2003x \ufeff",
]


def byte_level_metadata(pre: str = "smollm", **changes: object) -> dict[str, object]:
    """A vocabulary of all bytes, some merges, three control tokens and one user-defined one."""
    pieces = list(byte_alphabet())
    merges = ["Ġ t", "h e", "l l", "Ġt he", "ll o", "1 2", "Ġ Ġ"]
    pieces += [merge.replace(" ", "") for merge in merges]
    tokens = [*CONTROL, *pieces, "[user]"]
    types = [3] * len(CONTROL) + [1] * len(pieces) + [4]
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    metadata |= changes
    return {f"tokenizer.ggml.{name}": v for name, v in metadata.items() if v is not None}


def score_metadata(**changes: object) -> dict[str, object]:
    """A small score-based vocabulary with byte tokens, and user-defined tokens that overlap."""
    scored = {"▁": -9.0, "a": -8.0, "b": -8.5, "c": -8.6, "d": -8.7, "ab": -1.0, "bc": -0.5}
    scored |= {"▁a": -2.0, "▁ab": -4.0, "aa": -2.5, "aaaa": -2.6}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    user = ["[ab]", "[ab", "ab]cd"]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *user, *scored]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3, *[6] * 256, *[4] * 3, *[1] * len(scored)],
        "scores": [0.0] * (3 + 256 + 3) + list(scored.values()),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    metadata |= changes
    return {f"tokenizer.ggml.{name}": v for name, v in metadata.items() if v is not None}


def pieces_of(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    return [tokenizer.token_bytes(i).decode() for i in tokenizer.encode(text, **options)]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_every_pre_tokenizer_keeps_every_byte(pre, text):
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(pre))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=300)
@given(st.text())
def test_byte_level_round_trip(text):
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text


BYTE_LEVEL = Tokenizer.from_gguf(byte_level_metadata())
SCORED = Tokenizer.from_gguf(score_metadata())
UNSPACED = Tokenizer.from_gguf(score_metadata(add_space_prefix=False))


@settings(max_examples=300)
@given(st.text().filter(lambda text: "▁" not in text))
def test_score_based_round_trip(text):
    assert SCORED.decode(SCORED.encode(text)) == text


@given(st.text("abcd []", max_size=40))
def test_round_trip_around_user_defined_tokens(text):
    assert UNSPACED.decode(UNSPACED.encode(text)) == text


@pytest.mark.parametrize(
    ("pre", "longest"), [("smollm", 1), ("qwen2", 1), ("llama-bpe", 3), ("gpt-2", 5), ("tekken", 1)]
)
def test_digits_are_grouped_as_the_pre_tokenizer_says(pre, longest):
    digits = "12345"
    merges = ["1 2", "12 3", "123 4", "1234 5"]
    metadata = byte_level_metadata(pre)
    tokens = [*metadata["tokenizer.ggml.tokens"][:-1], "123", "1234", "12345"]
    metadata |= {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
    }
    pieces = pieces_of(Tokenizer.from_gguf(metadata), digits, add_bos=False)
    assert "".join(pieces) == digits
    assert max(map(len, pieces)) == longest


def test_ignore_merges_takes_a_whole_word_first():
    # "hello" is a token that no merge makes: only the families with ignore_merges find it.
    tokens = [*byte_level_metadata()["tokenizer.ggml.tokens"][:-1], "hello"]
    changes = {"tokens": tokens, "token_type": None}
    llama = Tokenizer.from_gguf(byte_level_metadata("llama-bpe", **changes))
    gpt2 = Tokenizer.from_gguf(byte_level_metadata("gpt-2", **changes))
    assert pieces_of(llama, "hello", add_bos=False) == ["hello"]
    assert pieces_of(gpt2, "hello") == ["he", "llo"]
    assert llama.add_bos_default and not gpt2.add_bos_default


def test_tokens_may_be_bytes_or_arrays():
    import numpy as np

    plain = score_metadata()
    as_stored = {
        **plain,
        "tokenizer.ggml.tokens": [t.encode() for t in plain["tokenizer.ggml.tokens"]],
        "tokenizer.ggml.scores": np.array(plain["tokenizer.ggml.scores"], np.float32),
        "tokenizer.ggml.token_type": np.array(plain["tokenizer.ggml.token_type"], np.int32),
        "tokenizer.ggml.bos_token_id": np.uint32(1),
    }
    other = Tokenizer.from_gguf(as_stored)
    for text in TEXTS:
        assert other.encode(text) == SCORED.encode(text)


def test_control_tokens_are_read_only_when_asked():
    text = "<|im_start|>he<|im_end|>"
    assert 1 not in BYTE_LEVEL.encode(text)
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
    ids = BYTE_LEVEL.encode(text, parse_special=True)
    assert ids[0] == 1
    assert ids[-1] == 2
    assert BYTE_LEVEL.decode(ids) == "he"
    assert BYTE_LEVEL.decode(ids, skip_special=False) == text


def test_control_text_never_merges_into_a_control_token():
    metadata = score_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("ab")] = "other"
    tokens[1] = "ab"  # BOS, written as merging could write it
    assert 1 not in Tokenizer.from_gguf(metadata).encode("ab", add_bos=False)


def test_user_defined_tokens_are_cut_out_first():
    user = BYTE_LEVEL.token_id("[user]")
    assert BYTE_LEVEL.encode("a[user]b") == [*BYTE_LEVEL.encode("a"), user, *BYTE_LEVEL.encode("b")]
    assert BYTE_LEVEL.decode([user]) == "[user]"
    assert not BYTE_LEVEL.is_special(user)


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


def slow_merge(text: str, scores: dict[str, tuple[int, float]]) -> list[str]:
    """The rule word by word: look at all adjacent pairs, merge the best, begin again."""
    pieces = list(text)
    while True:
        pairs = [(a + b, at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not pairs:
            return pieces
        best, at = min(pairs, key=lambda pair: (-scores[pair[0]][1], pair[1]))
        pieces[at : at + 2] = [best]


@settings(max_examples=300)
@given(st.data())
def test_merging_equals_the_slow_rule(data):
    letters = st.text("ab▁", min_size=1, max_size=5)
    pieces = sorted(data.draw(st.sets(letters, max_size=25)) | {"a", "b", "▁"})
    scores = {p: (i, float(data.draw(st.integers(-6, 0)))) for i, p in enumerate(pieces)}
    encoder = ScoreEncoder(scores, {}, None)
    text = data.draw(st.text("ab▁", max_size=25))
    assert [pieces[i] for i in encoder.encode(text)] == slow_merge(text, scores)


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


def test_bytes_without_a_token_are_refused_not_dropped():
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index(byte_alphabet()[0x1D])] = "replaced"
    tokenizer = Tokenizer.from_gguf(metadata)
    with pytest.raises(TokenizerError, match="0x1D"):
        tokenizer.encode("a\x1db")


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SCORED, byte_tokenizer()])
def test_a_lone_surrogate_is_refused(tokenizer):
    text = b"caf\xe9".decode("utf-8", "surrogateescape")
    with pytest.raises(TokenizerError, match=r"character 3 .*U\+DCE9"):
        tokenizer.encode(text)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, UNSPACED], ids=["bytes", "scores"])
@pytest.mark.parametrize("text", ["a" * 200_000, "ab [ab] \n" * 20_000, "機" * 60_000])
def test_long_texts_do_not_take_long(tokenizer, text):
    import time

    begin = time.monotonic()
    ids = tokenizer.encode(text, add_bos=False)
    assert time.monotonic() - begin < 5
    assert tokenizer.decode(ids) == text


def test_bos_is_added_as_the_file_says():
    assert SCORED.add_bos_default
    assert SCORED.encode("") == [1]
    assert SCORED.encode("", add_bos=False) == []
    assert not BYTE_LEVEL.add_bos_default
    assert BYTE_LEVEL.encode("", add_bos=True) == [1]
    assert Tokenizer.from_gguf(byte_level_metadata(add_bos_token=True)).encode("") == [1]
    assert not Tokenizer.from_gguf(score_metadata(add_bos_token=False)).add_bos_default


def test_asking_for_a_bos_that_does_not_exist_is_an_error():
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(bos_token_id=None))
    assert tokenizer.bos_id is None
    with pytest.raises(TokenizerError, match="BOS"):
        tokenizer.encode("a", add_bos=True)


def test_end_tokens_are_the_named_ones_and_those_known_by_their_text():
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(eot_token_id=1))
    assert tokenizer.eos_id == 2
    assert tokenizer.eos_ids == (2, 1, 0)  # EOS, end of turn, then <|endoftext|>
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_chat_templates_come_with_their_names():
    metadata = byte_level_metadata() | {
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "with tools",
    }
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.chat_template() == "plain"
    assert tokenizer.chat_template(tools=True) == "with tools"
    assert BYTE_LEVEL.chat_template() is None


@pytest.mark.parametrize("key", ["model", "tokens", "merges"])
def test_a_missing_part_is_named(key):
    with pytest.raises(TokenizerError, match=f"tokenizer.ggml.{key}"):
        Tokenizer.from_gguf(byte_level_metadata(**{key: None}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": ["a", "a"]}, "twice"),
        ({"tokens": []}, "non-empty"),
        ({"tokens": "abc"}, "array"),
        ({"tokens": [b"\xff"]}, "UTF-8"),
        ({"tokens": [1, 2]}, "strings"),
        ({"token_type": [1]}, "1 entries for"),
        ({"merges": ["nospace"]}, "nospace"),
        ({"merges": ["no such"]}, "do not fit"),
        ({"eos_token_id": 10**6}, "out of range"),
        ({"bos_token_id": None, "add_bos_token": True}, "BOS"),
        ({"model": "llama"}, "scores"),
    ],
)
def test_contradictions_are_errors(changes, words):
    with pytest.raises(TokenizerError, match=words):
        Tokenizer.from_gguf(byte_level_metadata(**changes))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_must_be_numbers(bad):
    scores = score_metadata()["tokenizer.ggml.scores"]
    with pytest.raises(TokenizerError, match="finite"):
        Tokenizer.from_gguf(score_metadata(scores=[bad, *scores[1:]]))


def test_what_is_not_supported_is_named_with_what_is():
    with pytest.raises(UnsupportedError, match=r"'bert'(.|\n)*gpt2, llama"):
        Tokenizer.from_gguf(byte_level_metadata(model="bert"))
    with pytest.raises(UnsupportedError, match=r"'no-such-pre'(.|\n)*smollm"):
        Tokenizer.from_gguf(byte_level_metadata("no-such-pre"))
    with pytest.raises(UnsupportedError, match="convert the model again"):
        Tokenizer.from_gguf(byte_level_metadata(pre=None))


@given(st.text())
def test_the_byte_tokenizer_is_utf8(text):
    tokenizer = byte_tokenizer()
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_byte_tokenizer_fits_any_vocabulary():
    large = byte_tokenizer(1000)
    assert (large.bos_id, large.eos_ids, large.vocab_size) == (256, (257,), 1000)
    assert large.encode("<bos>a<eos>", parse_special=True) == [256, 97, 257]
    assert large.decode([256, 97, 999, 257]) == "a<999>"
    small = byte_tokenizer(64)
    assert small.bos_id is None
    with pytest.raises(TokenizerError, match="0x61"):
        small.encode("1a")
    with pytest.raises(TokenizerError):
        byte_tokenizer(0)
