"""Tokenizers from GGUF metadata and from bytes: ids, round trips, and errors that name the key."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    BYTE_LEVEL,
    SCORED,
    TEXTS,
    UNSPACED,
    byte_level_metadata,
    pieces_of,
    score_metadata,
)
from work import calls

from cortiq.errors import TokenizerError, UnsupportedError
from cortiq.tokenizer import Tokenizer, byte_tokenizer
from cortiq.tokenizer.byte_level import byte_alphabet
from cortiq.tokenizer.pretokenizers import PRE_TOKENIZERS


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_every_pre_tokenizer_keeps_every_byte(pre, text):
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(pre))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=300)
@given(st.text())
def test_byte_level_round_trip(text):
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text


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


def test_user_defined_tokens_are_cut_out_first():
    user = BYTE_LEVEL.token_id("[user]")
    assert BYTE_LEVEL.encode("a[user]b") == [*BYTE_LEVEL.encode("a"), user, *BYTE_LEVEL.encode("b")]
    assert BYTE_LEVEL.decode([user]) == "[user]"
    assert not BYTE_LEVEL.is_special(user)


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
def test_work_grows_no_faster_than_the_text(tokenizer, text):
    third = text[: len(text) // 3]
    work = [calls(tokenizer.encode, part, add_bos=False) for part in (third, text)]
    assert work[1] < 3.3 * work[0]
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


COMPOSED = ["é", "Å", "가"]  # NFC of "e\u0301", "A\u030a" and two letters of Hangul
NFC = {"qwen2", "deepseek-r1-qwen", "f2llmv2", "qwen35", "command-r", "mpt", "olmo", "modern-bert"}
NFC |= {"tiny_aya", "cohere2moe"}


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_the_name_says_whether_texts_are_normalized(pre):
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(pre))
    for text in COMPOSED:
        apart = unicodedata.normalize("NFD", text)
        same = tokenizer.encode(apart) == tokenizer.encode(text)
        assert same == (pre in NFC), text


def test_the_normalization_is_what_transformers_builds():
    transformers = pytest.importorskip("transformers")
    vocabulary = {letter: token for token, letter in enumerate([*byte_alphabet(), "<|endoftext|>"])}
    named = {
        "Qwen2Tokenizer": "qwen2",
        "Qwen3_5Tokenizer": "qwen35",
        "GPTNeoXTokenizer": "olmo",
        "CohereTokenizer": "command-r",
        "GPT2Tokenizer": "gpt-2",
    }
    for name, pre in named.items():
        theirs = getattr(transformers, name)(vocab=vocabulary, merges=[])
        normalizer = theirs.backend_tokenizer.normalizer
        text = "e\u0301 A\u030a 123"
        plain = text if normalizer is None else normalizer.normalize_str(text)
        ours = Tokenizer.from_gguf(byte_level_metadata(pre))
        assert ours.decode(ours.encode(text)) == plain, name


def test_a_byte_that_normalization_composes_away_needs_no_token():
    metadata = byte_level_metadata("qwen2")
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index(byte_alphabet()[0xCC])] = "replaced"  # U+0301 begins with it
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"
    with pytest.raises(TokenizerError, match="0xCC"):
        tokenizer.encode("x\u0301")


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


JUNK = [None, 0, -1, 2.5, True, "", "x", b"x", [], [0], ["x"], [b"x"], [[0]], [None], {}]


@pytest.mark.parametrize("metadata", [byte_level_metadata(), score_metadata()])
@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_junk_in_any_key_is_an_error_of_ours_or_harmless(metadata, junk):
    for key in [*metadata, "tokenizer.ggml.add_bos_token", "tokenizer.chat_template"]:
        try:
            tokenizer = Tokenizer.from_gguf({**metadata, key: junk})
        except (TokenizerError, UnsupportedError) as error:
            assert error.where is None or str(error.where).startswith("tokenizer.")
        else:
            assert tokenizer.encode("Hello", add_bos=False)


def test_what_is_not_supported_is_named_with_what_is():
    with pytest.raises(UnsupportedError, match=r"'plamo2'(.|\n)*gpt2, llama"):
        Tokenizer.from_gguf(byte_level_metadata(model="plamo2"))
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
