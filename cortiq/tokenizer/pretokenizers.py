"""The pre-tokenizers that GGUF files name in `tokenizer.ggml.pre`, as data.

Each is a list of stages. A stage cuts every piece of the stage before it: the matches of its
regular expression and the gaps between them all become pieces. Source: the tokenizer.json of the
model families, as GGUF readers name them.

A GGUF file has no field for its tokenizer's normalisation, so the name implies it. The names with
`nfc` are those of the tokenizers that transformers builds with that normalizer (Qwen 2 to 3.5,
GPT-NeoX, Cohere), and of their descendants.

Some published patterns look ahead to the end of a run of digits, or of spaces, at every position in
it. Here they are written so that the time on any text is proportional to its length, with the same
cuts (`test_pre_tokenizers.py` holds the published ones beside them).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cortiq.errors import UnsupportedError

__all__ = [
    "CHARACTER_LEVEL",
    "PRE_TOKENIZERS",
    "PUBLISHED_PATTERNS",
    "PreTokenizer",
    "plain_pattern",
    "pre_tokenizer",
]


@dataclass(frozen=True)
class PreTokenizer:
    """Rules that split text into words before byte pairs merge.

    `ignore_merges`: a word that is a token is that token, whatever the merges say.
    `add_bos`: the family puts BOS before a text unless the file says otherwise.
    `nfc`: texts are brought to Unicode's normalization form C first.
    """

    stages: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_BLANKS}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_BLANKS}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    rf"|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED_CODER = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
)
_NO_STOPS = " ?[^(\\s|.,!?…。，、।۔،)]+"

# Words whose capitals come first, as in o200k and Tekken.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}|{_SYMBOLS_SLASH}|{_BLANKS}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}|{_BLANKS}"
)

# Code points of the cased letters as DeepSeek LLM lists them, in hexadecimal.
_DEEPSEEK_LETTERS = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A
38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF
1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D
1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4
1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F
2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F
A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""


def _character_class(ranges: str) -> str:
    ends = [span.split("-") for span in ranges.split()]
    return "".join("-".join(rf"\x{{{end}}}" for end in span) for span in ends)


_DEEPSEEK_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_character_class(_DEEPSEEK_LETTERS)}]+",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    _DEEPSEEK_CJK,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")
_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}",
)
_SPARK = (
    *_DEEPSEEK_3[:2],
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}",
)
_FIRST_DIGITS = r"\A\p{N}{1,2}(?=(?:\p{N}{3})++\z)"
"""The one or two digits of a number before its groups of three."""

_AFMOE_SCRIPTS = """
4E00-9FFF 3400-4DBF F900-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF E40-E7F E80-EFF 1780-17FF
1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF
"""
_AFMOE = (
    r"\p{N}+", _FIRST_DIGITS, r"\p{N}{3}", rf"[{_character_class(_AFMOE_SCRIPTS)}]+",
    _DEEPSEEK_3[2],
)  # fmt: skip
_TINY_AYA = (r"(?<!\d)\d++\b", _FIRST_DIGITS.replace(r"\p{N}", r"\d"), _GPT4O)
_SUPERBPE = (
    r"\p{N}+", r"(?<!\d)\d{0,2}\K(?=(?:\d{3})++(?!\d))", r"\d{3}(?=\d)",
)  # fmt: skip
_YOUTU = (
    rf"[{_character_class('AC00-D7A3 3131-318E')}]+"
    rf"|[{_character_class('FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C')}"
    rf"{_character_class('3001-303F FE30-FE4F')}]+|[{_character_class('3105-312F')}]+"
    rf"|[{_character_class('4E00-9FA5 3040-309F 30A0-30FF')}]+",
    _GPT4O.replace("{1,3}", ""),
)
_HANLESS = "&&[^\\p{Han}]]"
_KIMI = "[\\p{Han}]+|" + _GPT4O.replace("/", "").replace(_UPPER, _UPPER[:-1] + _HANLESS).replace(
    _LOWER, _LOWER[:-1] + _HANLESS
)
_CASCADE = "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
_JAIS_2 = _LLAMA3.removesuffix(_BLANKS) + (
    rf"(?<![^\S\r\n])\s*[\r\n]+|{_CASCADE}|\s{{1,2}}(?!\S)|\s"
)
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_LINES = r"[^\n]+|\n+"
_CHAMELEON = (
    "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"[\t\n]|    |  ", r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]", _GPT2,
)  # fmt: skip
_PUNCTUATION_FIRST = r"[\p{P}\$\+<=>\^~\|]+"

_DIGIT_THEN_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_ONE_DIGIT = PreTokenizer((_QWEN2,))
_THREE_DIGITS = PreTokenizer((_LLAMA3,))
_WITH_BOS = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_CASED = PreTokenizer((_GPT4O,))
_DEEPSEEK_3_STAGES = PreTokenizer(_DEEPSEEK_3)
_BLOOM = PreTokenizer((_NO_STOPS,))
_BAILING_MOE = PreTokenizer((_BAILING,))

_GROUPS: tuple[tuple[PreTokenizer, str], ...] = (
    (_DIGIT_THEN_GPT2, "smollm starcoder refact codeshell exaone minerva-7b mellum2"),
    (replace(_DIGIT_THEN_GPT2, nfc=True), "command-r"),
    (
        _PLAIN_GPT2,
        "gpt-2 jais phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code "
        "gigachat a.x-4.0 mellum roberta-bpe exaone4 trillion granite-docling",
    ),
    (replace(_PLAIN_GPT2, nfc=True), "mpt olmo modern-bert"),
    (
        _WITH_BOS,
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (_THREE_DIGITS, "dbrx smaug-bpe glm4 chatglm-bpe"),
    (_ONE_DIGIT, "kormo stablelm2 hunyuan solar-open megrez grok-2"),
    (replace(_ONE_DIGIT, nfc=True), "qwen2 deepseek-r1-qwen f2llmv2"),
    (PreTokenizer((_QWEN35,), nfc=True), "qwen35"),
    (PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (_CASED, "gpt-4o llama4 kanana2 minimax-m2 talkie"),
    (replace(_CASED, ignore_merges=True), "granite-embed-multi-97m"),
    (PreTokenizer(_TINY_AYA, nfc=True), "tiny_aya cohere2moe"),
    (PreTokenizer((_KIMI,)), "kimi-k2"),
    (PreTokenizer(_YOUTU, ignore_merges=True), "youtu"),
    (PreTokenizer((_JAIS_2,)), "jais-2"),
    (
        PreTokenizer((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), ignore_merges=True),
        "minicpm5",
    ),
    (PreTokenizer((_LINES, _QWEN2)), "laguna"),
    (PreTokenizer((_QWEN2.removeprefix(_CONTRACTION + "|"),)), "ufakzeka"),
    (PreTokenizer((_EXAONE_MOE,)), "exaone-moe"),
    (PreTokenizer(_AFMOE), "afmoe"),
    (PreTokenizer(_SUPERBPE), "superbpe"),
    (PreTokenizer(_CHAMELEON, add_bos=True), "chameleon"),
    (PreTokenizer(_SPARK), "spark2_5"),
    (PreTokenizer(_DEEPSEEK_LLM), "deepseek-llm"),
    (PreTokenizer(_DEEPSEEK_CODER), "deepseek-coder"),
    (_DEEPSEEK_3_STAGES, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (_BLOOM, "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((_NO_STOPS, r"\p{N}")), "viking"),
    (_BAILING_MOE, "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((_SEED_CODER,)), "seed-coder"),
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
        "falcon",
    ),
    (
        PreTokenizer((_PUNCTUATION_FIRST, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
        "default",
    ),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: definition for definition, names in _GROUPS for name in names.split()
}
"""Name in the file -> pre-tokenizer."""

CHARACTER_LEVEL = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
"""Names of vocabularies of characters, whose words are lines (`char_level`)."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer that a GGUF file calls `name`.

    Raises
    ------
    UnsupportedError : naming it and those that are supported.
    """
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise UnsupportedError(
            f"pre-tokenizer {name!r} is not supported",
            where="tokenizer.ggml.pre",
            hint=f"Supported: {', '.join(sorted((*PRE_TOKENIZERS, *CHARACTER_LEVEL)))}.",
        ) from None


def plain_pattern(pattern: object) -> str:
    """Return a pattern with its characters written out: files spell them in several ways."""
    text = re.sub(r"\\x\{([0-9A-Fa-f]{1,6})\}", lambda m: chr(int(m[1], 16)), str(pattern))
    for escape, character in ((r"\r", "\r"), (r"\n", "\n"), (r"\"", '"')):
        text = text.replace(escape, character)
    return text.replace(_CONTRACTION, _ANY_CASE)


_ANY_CASE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_OTHERS = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+",
    " ?[^(\\s|[.,!?…。，、।۔،])]+",
    r"\p{N}{1,3}", r"\d", r"\d{1,3}", r"\s+", r"\n", " {2,}", r"\s{2,}|[\n\r\t]", r"[\n\r\t]",
    r"\A▁",
)  # fmt: skip

PUBLISHED_PATTERNS = frozenset(
    plain_pattern(pattern)
    for pattern in (
        *_OTHERS,
        *(stage for definition in PRE_TOKENIZERS.values() for stage in definition.stages),
    )
)
"""Patterns whose time on any text is known to be proportional to its length."""
