"""Folders without tokenizer.json: tekken.json, tiktoken files and SentencePiece models."""

from __future__ import annotations

import base64
import json
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortiq.errors import NoTokenizerError, TokenizerError, UnsupportedError
from cortiq.tokenizer import Tokenizer
from cortiq.tokenizer.rank_files import CLASSES

WORDS = ["ab", "aba", "ba", "abab", "a" * 3, "th", "the", " the", "  ", "é", "\n\n", "12", "123"]
RANKS = {bytes([byte]): byte for byte in range(256)}
RANKS |= {word.encode(): 256 + n for n, word in enumerate(WORDS)}
SPLIT = r"\p{N}{1,3}| ?\p{L}+|\s+|[^\s\p{L}\p{N}]+"
TEXT = st.text(st.sampled_from("ab the123é\n漢!"), max_size=30)


def by_ranks(word: bytes) -> list[int]:
    """tiktoken's rule: the leftmost of the pairs with the lowest rank, until none is a token."""
    if word in RANKS:
        return [RANKS[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        pairs = [RANKS.get(a + b, 1 << 30) for a, b in pairwise(parts)]
        if not pairs or min(pairs) == 1 << 30:
            return [RANKS[part] for part in parts]
        at = pairs.index(min(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def ranked(text: str, pattern: str, first: int = 0) -> list[int]:
    regex = pytest.importorskip("regex")
    words = [match[0].encode() for match in regex.finditer(pattern, text, regex.V1)]
    return [first + token for word in words for token in by_ranks(word)]


def tekken(folder: Path, **changes: object) -> Path:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for token, rank in RANKS.items()
    ]
    config = {"pattern": SPLIT, "default_vocab_size": 276, "default_num_special_tokens": 10}
    special = [
        {"rank": rank, "token_str": text, "is_control": True}
        for rank, text in enumerate(["<unk>", "<s>", "</s>", "[INST]"])
    ]
    file = {"config": config, "vocab": vocab, "special_tokens": special} | changes
    (folder / "tekken.json").write_text(json.dumps(file))
    return folder


def tiktoken(folder: Path, name: str = "tiktoken.model", **settings: object) -> Path:
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in RANKS.items()]
    (folder / name).write_text("".join(lines))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> Tokenizer:
    return Tokenizer.from_folder(tekken(tmp_path_factory.mktemp("tekken")))


@given(text=TEXT)
def test_tekken_merges_by_ranks_and_leaves_out_what_exceeds_its_size(opened, text):
    ids = opened.encode(text, add_bos=False)
    kept = {token: rank for token, rank in RANKS.items() if rank < 266}
    assert all(token < 276 for token in ids)
    if "12" not in text and "\n\n" not in text and "é" not in text:
        assert {*kept} >= {*RANKS} - {b"\n\n", b"12", b"123"}
        assert ids == ranked(text, SPLIT, 10)
    assert opened.decode(ids) == text


def test_tekken_says_its_special_tokens(opened):
    assert (opened.bos_id, opened.eos_id, opened.vocab_size) == (1, 2, 276)
    assert opened.add_bos_default
    assert opened.token_id("[INST]") == 3
    assert opened.token_id("<SPECIAL_9>") == 9
    assert opened.encode("[INST]a", parse_special=True) == [1, 3, 10 + ord("a")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"special_tokens": None}, "another form"),
        ({"config": {"pattern": SPLIT}}, "default_num_special_tokens"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}]}, "Base64"),
        ({"vocab": [{"rank": 0, "token_bytes": ""}]}, "0 bytes"),
        ({"vocab": [{"rank": 5, "token_bytes": "PHM+"}]}, "'<s>' is a special"),
        ({"special_tokens": [{"rank": 12, "token_str": "x"}]}, "token 12 is not below"),
        ({"vocab": [{"rank": "a", "token_bytes": "YQ=="}]}, "no number"),
    ],
)
def test_a_broken_tekken_says_what_is_wrong(tmp_path, changes, message):
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_folder(tekken(tmp_path, **changes))


@pytest.fixture(scope="module")
def kimi(tmp_path_factory) -> Tokenizer:
    added = {"269": {"content": "[BOS]"}, "270": {"content": "[EOS]"}}
    settings = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added}
    names = {"bos_token": "[BOS]", "eos_token": "[EOS]"}
    return Tokenizer.from_folder(tiktoken(tmp_path_factory.mktemp("kimi"), **settings, **names))


KIMI_WORDS = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Kimi's words of texts without capitals and apostrophes."""


@given(text=TEXT)
def test_a_tiktoken_file_merges_by_ranks(kimi, text):
    ids = kimi.encode(text, add_bos=False)
    assert ids == ranked(text, KIMI_WORDS)
    assert kimi.decode(ids) == text


def test_kimi_reserves_ids_behind_its_ranks(kimi):
    assert (kimi.bos_id, kimi.eos_id, kimi.vocab_size) == (269, 270, 269 + 256)
    assert not kimi.add_bos_default
    assert kimi.token_id("<|reserved_token_300|>") == 300
    assert kimi.encode("a[EOS]", parse_special=True) == [ord("a"), 270]


@pytest.mark.parametrize(
    ("name", "file", "special"),
    [
        ("ChatGLM4Tokenizer", "tokenizer.model", None),
        ("QWenTokenizer", "qwen.tiktoken", "<|im_start|>"),
        ("HYTokenizer", "hy.tiktoken", "<|startoftext|>"),
    ],
)
def test_classes_of_tiktoken_files_that_are_known(tmp_path, name, file, special):
    tokenizer = Tokenizer.from_folder(tiktoken(tmp_path, file, tokenizer_class=name))
    assert tokenizer.decode(tokenizer.encode("the 123é")) == "the 123é"
    assert tokenizer.vocab_size == len(RANKS) + len(CLASSES[name].special)
    assert special is None or tokenizer.token_id(special) == len(RANKS) + 1


def test_code_is_refused_with_the_file_that_would_do(tmp_path):
    with pytest.raises(NoTokenizerError, match=r"(?s)XTokenizer.* is not run.*tokenizer\.json"):
        Tokenizer.from_folder(tiktoken(tmp_path, tokenizer_class="XTokenizer"))
    (tmp_path / "tiktoken.model").unlink()
    code = {"auto_map": {"AutoTokenizer": ["tokenization_x.XTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(code))
    with pytest.raises(NoTokenizerError, match=r"(?s)tokenization_x\.py.*tokenizer\.json would do"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("line", ["YQ== x", "YQ==", "YQ== 1 2"])
def test_a_broken_line_is_named(tmp_path, line):
    folder = tiktoken(tmp_path, tokenizer_class="TikTokenTokenizer")
    with (folder / "tiktoken.model").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(TokenizerError, match="line 270"):
        Tokenizer.from_folder(folder)


CORPUS = [
    "the cat sat on the mat",
    "a theory of the other cats",
    "12 cats, 123 mats; caf\u00e9 \uff21",
]


@cache
def trained(kind: str, **options: object) -> bytes:
    """A small model of SentencePiece."""
    sentencepiece = pytest.importorskip("sentencepiece")
    import io

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 20), model_writer=model, model_type=kind, vocab_size=330,
        byte_fallback=True, hard_vocab_limit=False, minloglevel=9, num_threads=1, **options,
    )  # fmt: skip
    return model.getvalue()


OPTIONS = {
    "llama": {
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
    },
    "gemma": {
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "add_dummy_prefix": False, "user_defined_symbols": ("[cat]", "<b>", "  "),
    },
    "normalised": {},
}  # fmt: skip
SENTENCES = [
    "", " ", "the cat", "  the  cat ", "a [cat]<b> mat", "caf\u00e9 \uff21\ufb01", "12 123\n\nx",
    "unseen \u6f22\u5b57 \U0001f600", "[cat]", "cat   cat",
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentencepiece_models_give_its_own_ids(tmp_path, kind, options):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = trained(kind, **OPTIONS[options])
    (tmp_path / "tokenizer.model").write_bytes(model)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = Tokenizer.from_folder(tmp_path)
    assert (ours.bos_id, ours.eos_id, ours.unknown_id) == (1, 2, 0)
    assert ours.add_bos_default == (kind == "bpe")
    for text in SENTENCES:
        ids = ours.encode(text, add_bos=False)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids), text


def test_a_configuration_says_whether_bos_comes_first(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe", **OPTIONS["llama"]))
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    assert not Tokenizer.from_folder(tmp_path).add_bos_default


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_a_cut_model_is_refused(tmp_path, cut):
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe", **OPTIONS["llama"])[:-cut])
    with pytest.raises(TokenizerError, match="no model of SentencePiece"):
        Tokenizer.from_folder(tmp_path)


def test_models_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x03\x0a\x01a\x12\x02\x18\x03")
    with pytest.raises(UnsupportedError, match="words or characters"):
        Tokenizer.from_folder(tmp_path)
