"""The pre-tokenizers of GGUF files: every name that llama.cpp knows, and the published cuts."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from vocabularies import byte_level_metadata

from cortiq.errors import NoTokenizerError, TokenizerError, UnsupportedError
from cortiq.tokenizer import Tokenizer
from cortiq.tokenizer.pretokenizers import CHARACTER_LEVEL, PRE_TOKENIZERS, PUBLISHED_PATTERNS

NAMES = """
a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx
deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4 f2llmv2
falcon falcon-h1 falcon3 gemma4 gigachat glm4 gpt-2 gpt-4o gpt3-finnish granite-docling
granite-embed-multi-311m granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4 jais jais-2
jina-de jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-v5-nano joyai-llm kanana2 kimi-k2
kormo laguna lfm2 llada-moe llama-bpe llama-v3 llama3 llama4 megrez mellum mellum2 midm-2.0
minerva-7b minicpm5 minimax-m2 modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact
roberta-bpe sarvam-moe seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe
talkie tekken tiny_aya trillion ufakzeka viking whitespace youtu
"""
"""Names in llama.cpp's src/llama-vocab.cpp (of November 2026)."""

TEXT = st.text(st.sampled_from("0123456789½٣aZé_'s \n\r\t.,漢か❤"), max_size=40)
RIGHT_ALIGNED = [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]
GPT4O = PRE_TOKENIZERS["gpt-4o"].stages[0]
LLAMA3 = PRE_TOKENIZERS["llama-bpe"].stages[0]
CASCADE = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
PUBLISHED = {
    "superbpe": RIGHT_ALIGNED,
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O],
    "jais-2": [LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + CASCADE + r"|\s{1,2}(?!\S)|\s{1}"],
}
"""Patterns as the families publish them, whose time grows with the square of a text."""


def cuts(stages: list[str] | tuple[str, ...], text: str) -> list[str]:
    """Return the words of a text."""
    split = [pre_tokenizers.Split(Regex(stage), "isolated") for stage in stages]
    return [word for word, _ in pre_tokenizers.Sequence(split).pre_tokenize_str(text)]


def test_every_name_of_llama_cpp_opens_or_is_refused_by_name():
    assert {*NAMES.split()} - {*PRE_TOKENIZERS, *CHARACTER_LEVEL} == {"whitespace"}
    with pytest.raises(UnsupportedError, match="'whitespace'") as error:
        Tokenizer.from_gguf(byte_level_metadata("whitespace"))
    assert all(name in str(error.value) for name in ("youtu", "sarvam-moe"))


@pytest.mark.parametrize("name", ["none", "no_vocab"])
def test_a_file_that_says_it_has_no_tokenizer_has_none(name):
    with pytest.raises(NoTokenizerError, match="no tokenizer"):
        Tokenizer.from_gguf({"tokenizer.ggml.model": name})


@pytest.mark.parametrize("name", PUBLISHED)
@given(text=TEXT)
@example(text="12½3456789½1 1234567 123456a 1234_ ٣٣٣٣")
@example(text=" " * 1100 + "a" + "\t" * 700 + "\n" + " " * 300)
def test_patterns_of_linear_time_cut_as_the_published_ones(name, text):
    assert cuts(PRE_TOKENIZERS[name].stages, text) == cuts(PUBLISHED[name], text)


@given(text=TEXT)
def test_afmoe_groups_digits_from_the_right(text):
    words = cuts(PRE_TOKENIZERS["afmoe"].stages, text)
    numbers = [word for word in words if word.isnumeric() and word != "漢"]
    expected = []
    for run in re.findall("[0-9½٣]+", text):
        first = len(run) % 3
        expected += [run[:first]] * bool(first)
        expected += [run[at : at + 3] for at in range(first, len(run), 3)]
    assert numbers == expected


@given(text=TEXT)
@example(text="漢字Han漢's ABCdef 1234 — x\n\n y")
def test_kimi_keeps_chinese_characters_apart(text):
    regex = pytest.importorskip("regex")
    letters = r"\p{Lm}\p{Lo}\p{M}"
    upper, lower = (rf"[\p{{L{first}}}{letters}&&[^\p{{Han}}]]" for first in ("u}\\p{Lt", "l"))
    ending = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    pattern = "|".join((
        r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{ending}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{ending}", r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
    ))  # fmt: skip
    found = [match[0] for match in regex.finditer(pattern, text, regex.V1)]
    assert cuts(PRE_TOKENIZERS["kimi-k2"].stages, text) == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("minicpm5", ["123", "45"]),
        ("ufakzeka", ["İstanbul", "'da"]),
        ("laguna", ["a", "\n\n", " ", " b"]),
        ("exaone-moe", ["one two three", "."]),
        ("chameleon", ["see", "IMGIMGABCZ", "  ", "4", "2", "!"]),
        ("spark2_5", ["a", "!", "\n", "\n", "b"]),
        ("youtu", ["한국", "漢字かな", "。", "Word", "1", "2"]),
    ],
)
def test_words_that_only_this_name_makes(name, words):
    assert cuts(PRE_TOKENIZERS[name].stages, "".join(words)) == words


@pytest.mark.parametrize("text", ["1" * 50_000, " " * 50_000 + "x", "a " * 25_000, "1a" * 25_000])
def test_long_runs_end_soon(text):
    """A pattern of quadratic time would take minutes here."""
    for name in ("superbpe", "tiny_aya", "jais-2", "afmoe", "exaone-moe", "kimi-k2"):
        assert "".join(cuts(PRE_TOKENIZERS[name].stages, text)) == text


def character_level(pre: str) -> dict[str, object]:
    letters = ["<bos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "\n\n"]
    types = [3, *[6] * 256, *[1] * 5]
    changes = {"tokens": letters, "token_type": types, "merges": ["▁ a"], "bos_token_id": 0}
    return byte_level_metadata(pre, **changes, eos_token_id=None)


@pytest.mark.parametrize("pre", ["sarvam-moe", "granite-embed-multi-311m"])
def test_vocabularies_of_characters_are_told_by_their_name(pre):
    tokenizer = Tokenizer.from_gguf(character_level(pre))
    ids = tokenizer.encode(" a\n\nbé")
    assert [tokenizer.token_bytes(i).decode("latin-1") for i in ids[:3]] == [" a", "\n\n", "b"]
    assert tokenizer.decode(ids) == " a\n\nbé"
    with pytest.raises(TokenizerError, match="0x00"):
        tokens = {"tokens": ["<bos>", "▁", "a", "▁a"], "token_type": [3, 1, 1, 1]}
        changes = {f"tokenizer.ggml.{key}": value for key, value in tokens.items()}
        Tokenizer.from_gguf(character_level(pre) | changes)


def test_published_patterns_of_unknown_cost_stay_in_a_process_of_their_own():
    assert RIGHT_ALIGNED[1] not in PUBLISHED_PATTERNS
