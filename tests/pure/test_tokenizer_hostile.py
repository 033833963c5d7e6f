"""A tokenizer.json costs no more than is known before, or works where it is ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_files import (
    VOCABULARY,
    added,
    described,
    replacing,
    sequence,
    split,
    template,
    write,
)
from tokenizers import Tokenizer as Engine

from cortiq.errors import TokenizerError, UnsupportedError
from cortiq.tokenizer import Tokenizer, encoders
from cortiq.tokenizer.encoders import ChildEncoder, LocalEncoder
from cortiq.tokenizer.encoding_cost import part_of_unknown_cost
from cortiq.tokenizer.library_vocabulary import LARGEST_ID, leading_id

TESTS = Path(__file__).parents[1]
EXPONENTIAL = "(a+)+$"
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
WORD_PIECE = {"type": "WordPiece", "vocab": VOCABULARY, "unk_token": "a"}
WORD_PIECE |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 10**15}
LARGE_IDS = {"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}
REFUSED = {
    "replacing to more": described(
        normalizer=sequence("normalizers", [replacing("a", "a" * 10)] * 9)
    ),
    "replacing to much": described(normalizer=replacing("a", "a" * 10**5)),
    "prepending": described(
        normalizer=sequence("normalizers", [{"type": "Prepend", "prepend": "a" * 1000}] * 200)
    ),
    "bytes of bytes": described(pre_tokenizer=sequence("pretokenizers", [BYTES] * 40)),
    "decoding to more": described(decoder=sequence("decoders", [replacing("a", "a" * 10)] * 9)),
    "decoding by patterns": described(decoder=replacing(EXPONENTIAL, "a", "Regex")),
    "repeating the text": described(
        post_processor=sequence("processors", [template(["A"] * 10, [])] * 8)
    ),
    "losing the text": described(post_processor=template(["x"], [0])),
    "a large id": described(model=LARGE_IDS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_known_to_cost_too_much_is_refused(tmp_path, name):
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(write(tmp_path, REFUSED[name]))


UNKNOWN = {
    "an unknown pattern": described(pre_tokenizer=split(EXPONENTIAL)),
    "a normalizer's pattern": described(normalizer=replacing(EXPONENTIAL, "a", "Regex")),
    "an empty pattern": described(normalizer=replacing("", "a")),
    "an empty text": described(normalizer={"type": "Prepend", "prepend": ""}),
    "growth": described(normalizer=replacing("a", "a" * 100)),
    "a table of another library": described(normalizer={"type": "Precompiled"}),
    "many steps": described(normalizer=sequence("normalizers", [replacing("a", "b")] * 17)),
    "words without end": described(model=WORD_PIECE),
    "a long affix": described(
        model=described()["model"] | {"continuing_subword_prefix": "x" * 10**6}
    ),
    "scores": described(model={"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]}),
    "tokens that become empty": described(
        added_tokens=[added(29, " ", normalized=True)],
        normalizer={"type": "Strip", "strip_left": True, "strip_right": True},
    ),
    "tokens that overlap": described(added_tokens=[added(29, " "), added(30, "<m>", rstrip=True)]),
    "no model": described(model=None),
    "a step that is none": described(normalizer=["NFC"]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_part_of_unknown_cost_is_found(name):
    assert part_of_unknown_cost(UNKNOWN[name])


UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PUBLISHED = [
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]


def test_what_is_published_works_in_this_process(tmp_path):
    steps = [*map(split, PUBLISHED), {"type": "Digits", "individual_digits": True}, BYTES]
    normalizer = sequence("normalizers", [{"type": "NFC"}, replacing(" ", "▁")])
    file = described(normalizer=normalizer, pre_tokenizer=sequence("pretokenizers", steps))
    assert part_of_unknown_cost(file) == ""
    text = json.dumps(file)
    assert isinstance(encoders.open_encoder(text, file, "file"), LocalEncoder)


def test_a_child_gives_the_same_ids_and_outlives_what_fails_in_it(monkeypatch, capfd):
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["a" * k, -1.0] for k in range(1, 1500)]}
    file = described(
        model=model | {"byte_fallback": False},
        pre_tokenizer=split(EXPONENTIAL),
        added_tokens=[added(1499, "<s>", special=True)],
    )
    text = json.dumps(file)
    child, library = ChildEncoder(text, "it", "file"), Engine.from_str(text)
    described_here = json.loads(json.dumps(encoders.describe(encoders.build(text))))
    assert child.description == described_here

    def agree() -> None:
        for words in ("", "aaa", "b<s>a"):
            for special in (True, False):
                library.encode_special_tokens = not special
                assert child.encode(words, special) == library.encode(words).ids

    agree()
    with pytest.raises(TokenizerError, match="retry-limit"):  # a panic of the library
        child.encode("a" * 40 + "!", False)
    agree()
    monkeypatch.setattr(encoders, "ENCODE_SECONDS", 0.2)
    with pytest.raises(TokenizerError, match=r"0\.\d+ s of processor time"):
        child.encode("a" * 30_000, False)
    agree()
    assert capfd.readouterr().err == ""


def test_a_child_has_so_much_memory(monkeypatch):
    monkeypatch.setattr(encoders, "MEMORY", 1 << 29)
    text = json.dumps(described(normalizer=replacing("a", "a" * 10**5)))
    child = ChildEncoder(text, "it", "file")
    assert len(child.encode("aa", False)) == 2 * 10**5
    with pytest.raises(TokenizerError, match="MiB of memory"):
        child.encode("a" * 10**4, False)


BYTE_LEVEL = BYTES | {"use_regex": True}
BERT = {"type": "BertProcessing", "sep": ["b", 1], "cls": ["c", 2]}
ROBERTA = {"type": "RobertaProcessing", "sep": ["b", 1], "cls": ["d", 3], "trim_offsets": True}
ROBERTA |= {"add_prefix_space": True}
TEMPLATES = [
    template(["A"], []),
    template(["x", "A"], [3, 4]),
    template(["x", "x", "A", "x"], [5]),
    template(["x", "A", "x"], []),
]
# The library cannot have two templates.
PROCESSORS = st.lists(st.sampled_from([BYTE_LEVEL, BERT, ROBERTA]), max_size=3)
PROCESSORS |= st.sampled_from([[BYTE_LEVEL, one] for one in TEMPLATES])


@given(PROCESSORS, st.booleans())
def test_the_first_id_is_the_post_processors(steps, flat):
    processor = steps[-1] if flat and steps else sequence("processors", steps)
    engine = encoders.build(json.dumps(described(post_processor=processor)))
    expected = engine.encode("", add_special_tokens=True).ids[:1]
    found = leading_id(encoders.describe(engine)["post_processor"], "file")
    assert [found][: found is not None] == expected
    assert engine.encode("", add_special_tokens=True).ids == []  # taken out: never run again


def test_a_template_of_an_unknown_token_is_an_error(tmp_path):
    broken = template(["x", "A"], [1]) | {"special_tokens": {}}
    with pytest.raises(TokenizerError, match="no ids for 'x'"):
        Tokenizer.from_folder(write(tmp_path, described(post_processor=broken)))


def test_post_processors_of_many_ids_are_never_run(tmp_path):
    many = template(["x"] * 3000 + ["A"], [5] * 3000)
    folder = write(tmp_path, described(post_processor=many))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "f"}')
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.add_bos_default
    assert tokenizer.encode("ab") == [5, 0, 1]


def test_the_largest_id_is_named(tmp_path):
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": LARGEST_ID - 1}, "unk_token": "a"}
    assert Tokenizer.from_folder(write(tmp_path, described(model=model))).vocab_size == LARGEST_ID
    model["vocab"]["b"] += 1
    with pytest.raises(UnsupportedError, match=str(LARGEST_ID)):
        Tokenizer.from_folder(write(tmp_path, described(model=model)))


@pytest.mark.parametrize("step", [replacing("a", "b"), replacing(EXPONENTIAL, "b", "Regex")])
def test_what_the_library_says_is_short(tmp_path, step):
    model = described()["model"] | {"merges": [["a", "no\n" * 5000]]}
    with pytest.raises(TokenizerError, match="not a tokenizer") as caught:
        Tokenizer.from_folder(write(tmp_path, described(model=model, normalizer=step)))
    assert len(caught.value.what) < 400
    assert "\n" not in caught.value.what


def test_made_up_files():
    command = [sys.executable, "-m", "fuzz.tokenizers", "--count", "50"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
